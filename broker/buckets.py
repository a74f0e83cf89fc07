"""What AWS says of a home's bucket: whose it is, and with which key it is encrypted. Runs on the broker's side only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker import access
from broker.errors import ConfigError
from broker.provider import Finding

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

ACTIONS = "s3:ListBucket on it, and s3:GetObject, s3:PutObject and s3:DeleteObject on what is in it"


def client(settings: Mapping[str, str]) -> S3Client:
    """boto3's client for a home's store, for what obstore has no call for. Raises ConfigError."""
    try:
        from botocore.config import Config as Options
    except ImportError as error:
        raise ConfigError("setting up a home needs boto3", fix="pip install 'spotbroker[home]'") from error
    options: Any = Options(
        connect_timeout=5,
        read_timeout=30,
        retries={"mode": "standard", "total_max_attempts": 3},
        # B2 and RunPod refuse the checksums that newer clients add of their own accord.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if settings.get("endpoint") else {},
    )
    made: S3Client = access.client(
        settings,
        "s3",
        endpoint_url=settings.get("endpoint") or None,
        region_name=settings.get("region") or "us-east-1",
        aws_access_key_id=settings.get("access_key_id"),
        aws_secret_access_key=settings.get("secret_access_key"),
        aws_session_token=settings.get("session_token"),
        config=options,
    )
    return made


def encryption(s3: S3Client, bucket: str) -> str:
    """The KMS key that the bucket encrypts with by default, `*` for one that is not named by its ARN, such as S3's own
    of the account; empty for none, and where that may not be asked.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        rules = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    except (ClientError, BotoCoreError, KeyError):
        return ""
    for rule in rules:
        told = rule.get("ApplyServerSideEncryptionByDefault", {})
        if str(told.get("SSEAlgorithm", "")).startswith("aws:kms"):
            key = str(told.get("KMSMasterKeyID", ""))
            return key if ":key/" in key else "*"
    return ""


def foreign(s3: S3Client, bucket: str, settings: Mapping[str, str]) -> Finding | None:
    """A bucket of another account lets in only whom its own policy names too; None for the account's own, and where
    nobody says.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        account = str(access.sts(settings).get_caller_identity()["Account"])
        s3.head_bucket(Bucket=bucket, ExpectedBucketOwner=account)
    except ClientError as error:
        if error.operation_name != "HeadBucket" or error.response["ResponseMetadata"]["HTTPStatusCode"] != 403:
            return None
        text = f"{bucket} is another account's: its bucket policy must let arn:aws:iam::{account}:root do {ACTIONS}"
        return Finding("owner", True, text)
    except BotoCoreError:
        return None
    return None

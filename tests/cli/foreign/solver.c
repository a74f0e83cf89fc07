/* A simulation that prints at its end only: iter_0000010.h5-like dumps, the newest found by its number. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int main(void) {
    long step = 0, found;
    double x = 1.0;
    char name[64], temporary[64];
    mkdir("dumps", 0755);
    DIR *folder = opendir("dumps");
    for (struct dirent *entry; (entry = readdir(folder));)
        if (sscanf(entry->d_name, "iter_%ld", &found) == 1 && found > step) step = found;
    closedir(folder);
    if (step) {
        sprintf(name, "dumps/iter_%07ld", step);
        FILE *file = fopen(name, "rb");
        if (!file || fread(&x, sizeof x, 1, file) != 1) return 2;
        fclose(file);
    }
    for (; step < 60; ) {
        usleep(90000);
        x = x * 0.5 + 1.0;
        if (++step % 6 == 0) {
            sprintf(temporary, "dumps/.iter_%07ld", step);
            sprintf(name, "dumps/iter_%07ld", step);
            FILE *file = fopen(temporary, "wb");
            fwrite(&x, sizeof x, 1, file);
            fclose(file);
            rename(temporary, name);
        }
    }
    printf("x = %f\n", x);
    return 0;
}

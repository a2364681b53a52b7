/* The network's three layers for 15 rows and their order: what the ranking costs without any library around it.
   weights: [inputs, outputs], so that the innermost loops run over outputs and the compiler can vectorise them. */
#include <string.h>

enum { ROWS = 15, INPUTS = 12, FIRST = 128, SECOND = 64 };

struct network {
    const float *weight_1, *bias_1, *weight_2, *bias_2, *weight_3, *bias_3;
};

static void score(const struct network *network, const float *rows, float *scores)
{
    for (int row = 0; row < ROWS; row++) {
        float first[FIRST], second[SECOND];
        memcpy(first, network->bias_1, sizeof first);
        for (int i = 0; i < INPUTS; i++)
            for (int j = 0; j < FIRST; j++)
                first[j] += rows[row * INPUTS + i] * network->weight_1[i * FIRST + j];
        for (int j = 0; j < FIRST; j++)
            first[j] = first[j] > 0 ? first[j] : 0;
        memcpy(second, network->bias_2, sizeof second);
        for (int i = 0; i < FIRST; i++)
            for (int j = 0; j < SECOND; j++)
                second[j] += first[i] * network->weight_2[i * SECOND + j];
        float sum = network->bias_3[0];
        for (int j = 0; j < SECOND; j++)
            sum += (second[j] > 0 ? second[j] : 0) * network->weight_3[j];
        scores[row] = sum;
    }
}

static void order(const float *scores, int *best_first)
{
    for (int i = 0; i < ROWS; i++) {
        int j = i;
        for (; j > 0 && scores[best_first[j - 1]] < scores[i]; j--)
            best_first[j] = best_first[j - 1];
        best_first[j] = i;
    }
}

/* questions: [count, 15, 12]; scores: [count, 15]; best_first: [count, 15]. */
void rank_all(const struct network *network, int count, const float *questions, float *scores, int *best_first)
{
    for (int i = 0; i < count; i++) {
        score(network, questions + i * ROWS * INPUTS, scores + i * ROWS);
        order(scores + i * ROWS, best_first + i * ROWS);
    }
}

/** A comment in the benchmark's own statements: where statements are counted, these are not. */
export const mark = 'asked by the benchmark'

/** The release of this library, as its package.json has it; a test compares the two. */
export const release = '0.1.0'

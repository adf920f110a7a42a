/** The command was called wrongly: nothing was tried, and it says nothing of Pawl. */
export class WrongCall extends Error {}

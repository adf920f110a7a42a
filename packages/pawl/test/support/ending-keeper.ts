// Loaded by a keeper thread that is to end without an error, as a thread may that runs out of memory.

setTimeout(() => process.exit(0), 300)

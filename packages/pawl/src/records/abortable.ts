// A body that can be left at any moment, also while its next chunk does not come.

/** The same chunks, until the signal. Its listener goes with each chunk: a promise that waited for all of them would keep all of them. */
export async function* abortable<Chunk>(
  body: AsyncIterable<Chunk> | Iterable<Chunk>,
  signal: AbortSignal,
): AsyncGenerator<Chunk> {
  const chunks = Symbol.asyncIterator in body ? body[Symbol.asyncIterator]() : body[Symbol.iterator]()
  let isDone = false
  try {
    for (;;) {
      const next = await orAborted(async () => chunks.next(), signal)
      if (next.done === true) {
        isDone = true
        return
      }
      yield next.value
    }
  } finally {
    // Told and not waited for: who hangs in `next` may hang here as well.
    if (!isDone) void (async () => chunks.return?.())().catch(() => undefined)
  }
}

function orAborted<Answer>(ask: () => Promise<Answer>, signal: AbortSignal): Promise<Answer> {
  signal.throwIfAborted()
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason as Error)
    signal.addEventListener('abort', stop, { once: true })
    ask()
      .then(resolve, reject)
      .finally(() => signal.removeEventListener('abort', stop))
  })
}

// One seed, many streams. Each concern draws from a stream of its own name, so that another draw in one does not shift the others.

import { createHash } from 'node:crypto'

export class Random {
  #state: bigint

  constructor(seed: string) {
    this.#state = createHash('sha256').update(seed).digest().readBigUInt64LE()
  }

  /** From 0 up to, not including, 1 (splitmix64). */
  next(): number {
    this.#state = BigInt.asUintN(64, this.#state + 0x9e3779b97f4a7c15n)
    let z = this.#state
    z = BigInt.asUintN(64, (z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n)
    z = BigInt.asUintN(64, (z ^ (z >> 27n)) * 0x94d049bb133111ebn)
    return Number((z ^ (z >> 31n)) >> 11n) / 2 ** 53
  }

  /** A whole number from `low` to `high`, both included. */
  whole(low: number, high: number): number {
    return low + Math.floor(this.next() * (high - low + 1))
  }

  chance(probability: number): boolean {
    return this.next() < probability
  }

  pick<T>(list: readonly T[]): T {
    return list[Math.floor(this.next() * list.length)]!
  }

  shuffled<T>(list: readonly T[]): T[] {
    const result = [...list]
    for (let index = result.length - 1; index > 0; index--) {
      const other = this.whole(0, index)
      ;[result[index], result[other]] = [result[other]!, result[index]!]
    }
    return result
  }
}

export function stream(seed: number, name: string): Random {
  return new Random(`${seed}/${name}`)
}

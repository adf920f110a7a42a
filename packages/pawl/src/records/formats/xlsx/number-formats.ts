// What the number of a cell means by its number format: a number, a day, a time of day, or a duration.

export type NumberKind = 'number' | 'date' | 'time' | 'duration'

/**
 * The formats that every program knows by their number. 27 to 36 and 50 to 58 are East Asian; some of them are a date in one language and a
 * time in another, which the number itself decides: below 1 there is no day.
 */
export function builtInKind(id: number): NumberKind {
  if (id === 46) return 'duration'
  if ((id >= 18 && id <= 21) || id === 32 || id === 33 || id === 45 || id === 47) return 'time'
  return (id >= 14 && id <= 22) || (id >= 27 && id <= 36) || (id >= 50 && id <= 58) ? 'date' : 'number'
}

// Of a format's code: quoted and escaped strings, the width of a character, a fill, and what is in brackets.
const literal = /"[^"]*"|\\.|_.|\*.|\[[^\]]*\]/gs
const elapsed = /\[(?:h+|m+|s+)\]/i
const noDate = /general|[eE][+-]/gi
const halfDay = /am\/pm|a\/p|上午\/下午|午前\/午後|오전\/오후/gi

/** By the code's first section, which is that of positive numbers. y, d, e, g and b are dates; h and s are times; m is either. */
export function kindOf(code: string): NumberKind {
  const section = firstSection(code)
  if (elapsed.test(section.replace(/"[^"]*"|\\./gs, ''))) return 'duration'
  const bare = section.replace(literal, '').replace(noDate, '')
  const isTime = bare.search(halfDay) >= 0 || /[hs]/i.test(bare)
  const letters = bare.replace(halfDay, '')
  if (/[ydegb]/i.test(letters)) return 'date'
  if (isTime) return 'time'
  return /m/i.test(letters) ? 'date' : 'number'
}

function firstSection(code: string): string {
  const [section] = /^(?:"[^"]*"|\\.|[^;"\\])*/s.exec(code) ?? ['']
  return section
}

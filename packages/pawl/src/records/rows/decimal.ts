// Decimals as text. A number of a record never becomes a JavaScript number: 2^53 and 0.10 would not survive it. Each value has one
// canonical text, so that 1, "1" and " 1.0 " are equal before they are compared or hashed.

/** More digits than any ledger has; a larger exponent would make a string of megabytes out of six characters. */
export const decimalDigitsMax = 1000

// Almost every number is canonical already; then one test is enough.
const canonical = /^-?(?:0|[1-9]\d{0,17})(?:\.\d{0,17}[1-9])?$/
const decimal = /^([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,6}))?$/

/** The canonical text of a decimal, or undefined when it is none: no exponent, no plus, no zeros that say nothing, no minus zero. */
export function canonicalDecimal(text: string): string | undefined {
  if (canonical.test(text)) return text === '-0' ? '0' : text
  const match = decimal.exec(text.trim())
  if (match === null) return undefined
  const [, sign, whole = '', fraction = '', exponent = '0'] = match
  if (whole.length + fraction.length === 0) return undefined
  const shift = Number(exponent)
  if (whole.length + fraction.length + Math.abs(shift) > decimalDigitsMax) return undefined
  const [left, right] = shifted(whole, fraction, shift)
  const integer = left.replace(/^0+(?=\d)/, '') || '0'
  const rest = right.replace(/0+$/, '')
  if (integer === '0' && rest === '') return '0'
  return `${sign === '-' ? '-' : ''}${integer}${rest === '' ? '' : `.${rest}`}`
}

function shifted(whole: string, fraction: string, shift: number): [whole: string, fraction: string] {
  if (shift === 0) return [whole, fraction]
  if (shift > 0) {
    const digits = fraction.padEnd(shift, '0')
    return [whole + digits.slice(0, shift), digits.slice(shift)]
  }
  const digits = whole.padStart(-shift, '0')
  return [digits.slice(0, digits.length + shift), digits.slice(digits.length + shift) + fraction]
}

/** Decimal places of a canonical decimal. */
export function decimalScale(text: string): number {
  const point = text.indexOf('.')
  return point < 0 ? 0 : text.length - point - 1
}

/** A double holds any 15 digits, so two decimals that short are in the same order as their doubles. */
const exactChars = 15

/** A comparison with one decimal, for many others: negative, zero or positive as the other is less, equal or greater. All are canonical. */
export function comparedWith(bound: string): (text: string) => number {
  const value = bound.length <= exactChars ? Number(bound) : undefined
  return (text) => (value !== undefined && text.length <= exactChars ? Number(text) - value : compareDecimals(text, bound))
}

/** Negative, zero or positive as a is less than, equal to or greater than b; both canonical. */
export function compareDecimals(a: string, b: string): number {
  if (a === b) return 0
  const isNegative = a.startsWith('-')
  if (isNegative !== b.startsWith('-')) return isNegative ? -1 : 1
  return isNegative ? compareMagnitudes(b.slice(1), a.slice(1)) : compareMagnitudes(a, b)
}

function compareMagnitudes(a: string, b: string): number {
  const [aWhole = '', aFraction = ''] = a.split('.')
  const [bWhole = '', bFraction = ''] = b.split('.')
  if (aWhole.length !== bWhole.length) return aWhole.length - bWhole.length
  if (aWhole !== bWhole) return aWhole < bWhole ? -1 : 1
  if (aFraction === bFraction) return 0
  return aFraction < bFraction ? -1 : 1
}

// Loaded by the keeper's thread of a process under test: its faults and its share of a planted bug.

import { plantInProcess } from './canaries/plant.ts'
import { childOptions, procOf } from './child.ts'
import { ControlClient } from './control.ts'
import { History } from './history.ts'
import { installFaults } from './probe-faults.ts'

const options = childOptions()
plantInProcess(options.canary, options.slot)
installFaults({
  slot: `${options.slot} keeper`,
  faults: options.keeperFaults,
  history: new History(options.dir, procOf(options), ' keeper'),
  control: new ControlClient(options.controlPort),
})

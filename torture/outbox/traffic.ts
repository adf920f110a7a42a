// What users do during a storm of outbox, beside appending: they mend what is parked.

import { mendAll } from '../events/mend.ts'
import { EventTraffic } from '../events/traffic.ts'
import type { Plan } from '../plan.ts'
import type { Rig } from '../rig.ts'

export class OutboxTraffic extends EventTraffic {
  static override async open(rig: Rig, plan: Plan): Promise<OutboxTraffic> {
    return new OutboxTraffic(rig, plan, await rig.proxy())
  }

  override async start(): Promise<void> {
    await super.start()
    this.every(400, async () => void (await mendAll(this.rig.admin).catch(() => 0)))
  }
}

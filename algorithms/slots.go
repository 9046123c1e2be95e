package algorithms

// SlotsExpiry is the time for which an instance's count of slots lives after it was written. An
// instance can miss two writes in that time. A killed instance keeps slots taken no longer.
const SlotsExpiry Micros = 30_000_000

// LineExpiry is the time for which a line of requests that wait for slots lives after it was written. Others
// wait behind the line of a killed instance no longer.
const LineExpiry Micros = 1_000_000

// LineRenewal is the age at which a line that is the same is written again.
const LineRenewal Micros = 300_000

// LineSlack is the time within which requests of different instances count as having come at the same time. It is
// more than the times of messages to Redis vary. Otherwise two requests could each take the other for the earlier one.
const LineSlack Micros = 25_000

// Instance is the identity of a process that takes slots: random bits, new at each start.
//
// Only Redis keeps the counts of several instances. So the product has slots.lua alone. Slots in package
// wiretest mirror it, for tests.
type Instance [16]byte

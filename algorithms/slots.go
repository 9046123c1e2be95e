package algorithms

// SlotsExpiry is the time for which an instance's count of slots lives after it was written. An
// instance can miss two writes in that time. A killed instance keeps slots taken no longer.
const SlotsExpiry Micros = 30_000_000

// Instance is the identity of a process that takes slots: random bits, new at each start.
//
// Only Redis keeps the counts of several instances. So the product has slots.lua alone. Slots in package
// wiretest mirror it, for tests.
type Instance [16]byte

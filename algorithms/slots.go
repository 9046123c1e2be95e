package algorithms

// SlotsExpiry is the time for which an instance's count of slots lives after it was written. An
// instance can miss two writes in that time. A killed instance keeps its slots no longer than this.
const SlotsExpiry Micros = 30_000_000

// LineExpiry is the time for which a line of requests that wait for slots lives after it was written. Others
// wait no longer than this behind the line of a killed instance.
const LineExpiry Micros = 1_000_000

// LineRenewal is the age at which an unchanged line is written again.
const LineRenewal Micros = 300_000

// LineSlack is the time within which requests of different instances count as having come at the same time. It exceeds
// how much the times of messages to Redis vary. Otherwise each of two requests could take the other for the earlier one.
const LineSlack Micros = 25_000

// Instance is the identity of a process that takes slots: random bits, new at each start.
//
// Only Redis keeps the counts of several instances. So only slots.lua has this part. Slots in
// package wiretest mirror it, for tests.
type Instance [7]byte

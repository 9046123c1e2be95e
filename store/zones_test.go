package store

import "testing"

// A request looks up its zone, a sweep drops the zone because it uses nothing, and then the request
// is charged.
func TestZoneDroppedWhileInUse(t *testing.T) {
	table := newZoneTable()
	before := table.zone("z")
	table.sweep()
	other := table.zone("other") // has the number that was free
	after := table.addWeight(before, 3)
	if after == before || after != table.zone("z") || after.weight.Load() != 3 {
		t.Errorf("%+v was charged, and %+v is the zone", after, table.zone("z"))
	}
	if table.zoneByNumber(after.number) != after || table.zoneByNumber(other.number) != other {
		t.Errorf("zones %d and %d have each other's number", after.number, other.number)
	}
	table.sweep()
	if table.zone("z") != after || after.weight.Load() != 3 {
		t.Error("a zone that uses memory was dropped")
	}
}

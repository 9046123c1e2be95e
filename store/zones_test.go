package store

import "testing"

// A request looks its zone up, a sweep drops the zone because it holds nothing, and then the
// request is charged.
func TestZoneDroppedWhileInUse(t *testing.T) {
	table := newZoneTable()
	found := table.of("z")
	table.sweep()
	other := table.of("other") // has the number that was free
	counted := table.count(found, 3)
	if counted == found || counted != table.of("z") || counted.keys.Load() != 3 {
		t.Errorf("%+v was charged, and %+v is the zone", counted, table.of("z"))
	}
	if table.numbered(counted.number) != counted || table.numbered(other.number) != other {
		t.Errorf("zones %d and %d have each other's number", counted.number, other.number)
	}
	table.sweep()
	if table.of("z") != counted || counted.keys.Load() != 3 {
		t.Error("a zone that holds something was dropped")
	}
}

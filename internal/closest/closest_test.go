package closest

import "testing"

func TestIndex(t *testing.T) {
	names := []string{"fixed_window", "gcra", "smooth"}
	for name, want := range map[string]int{
		"gcra": 1, "gcar": 1, "gra": 1, "gcraa": 1, "smoth": 2, "fixedwindow": 0, "leaky": -1, "": -1,
	} {
		if got := Index(name, names); got != want {
			t.Errorf("%q: %d, want %d", name, got, want)
		}
	}
	if got := Index("ab", []string{"ax", "ab", "ay"}); got != 1 {
		t.Errorf("the exact name is %d, want 1", got)
	}
	if got := Index("ab", []string{"ax", "ay"}); got != 0 {
		t.Errorf("of equally similar names Index returns %d, want the first", got)
	}
}

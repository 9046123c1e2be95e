// Package closest finds the most similar name, for errors such as "did you mean api?". It never knows what the names are for.
package closest

// maxLength is the length from which on a name is no misspelling, and a comparison would take long.
const maxLength = 40

// Index returns the index of the most similar name, or -1 if none is similar. A third of the letters of a name may be
// wrong, but at most three.
func Index(name string, names []string) int {
	best, allowed := -1, min((len(name)+1)/3, 3)
	if len(name) > maxLength {
		return -1
	}
	for i, other := range names {
		if d := distance(name, other); d <= allowed {
			best, allowed = i, d-1
		}
	}
	return best
}

// distance returns the edit distance of two texts: how many letters have to be inserted, left
// out, replaced, or swapped with the next one.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j], rows[i][j-1], rows[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

package jsonvalue

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Path leads from the outermost value of a JSON text to a value within it. Each element selects a member of
// an object by its name, or an element of an array by its number, counted from 0. "items", "0", "id" is the
// id of the first item. The empty Path is the outermost value itself.
type Path []string

// ParsePath returns the path that text describes. Dots separate its elements: "items.0.id". A member whose
// name contains a dot or is empty has no path.
func ParsePath(text string) (Path, error) {
	if text == "" {
		return nil, errors.New("the path is empty: write the names of the members that lead to the value, as in user.name")
	}
	path := strings.Split(text, ".")
	for _, element := range path {
		if element == "" {
			return nil, fmt.Errorf("the path %q has an empty name: write names with one dot between two of them, as in user.name", text)
		}
	}
	return path, nil
}

// step is an element of a path, prepared for comparisons.
type step struct {
	name  string
	index int // the number of an element of an array; -1 where the name is not a number
}

// newStep prepares an element of a path. Numbers are written without a sign and without leading zeros.
func newStep(name string) step {
	index, err := strconv.Atoi(name)
	if err != nil || strconv.Itoa(index) != name || index < 0 {
		index = -1
	}
	return step{name: name, index: index}
}

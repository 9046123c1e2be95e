package jsonvalue

import (
	"errors"
	"fmt"
	"strconv"
)

// Path leads from the outermost value of a JSON text to a value within it. Each element selects a member of
// an object by its name, or an element of an array by its number, counted from 0. "items", "0", "id" is the
// id of the first item. The empty Path is the outermost value itself.
type Path []string

// ParsePath returns the path that text describes. Dots separate its elements: "items.0.id". A backslash takes
// the next character as part of a name: `user\.name` is one name. A member whose name is empty has no path.
// Spellings of other query languages are errors, because their names would select nothing: items[0], *, $.
func ParsePath(text string) (Path, error) {
	if text == "" {
		return nil, errors.New("the path is empty: write the names of the members that lead to the value, as in user.name")
	}
	var path Path
	var name []byte
	begin := 0 // of the element
	for i := 0; i <= len(text); i++ {
		switch {
		case i == len(text) || text[i] == '.':
			if err := checkElement(text, text[begin:i]); err != nil {
				return nil, err
			}
			path, name, begin = append(path, string(name)), name[:0], i+1
		case text[i] == '\\' && i+1 < len(text):
			i++
			name = append(name, text[i])
		case text[i] == '\\':
			return nil, fmt.Errorf("the path %s ends in a backslash: write two for a backslash in a name", text)
		case text[i] == '[':
			return nil, fmt.Errorf("the path %s has a bracket: write numbers between dots, as in items.0.id; "+
				"a backslash before a bracket makes it part of a name", text)
		case text[i] == '"' || text[i] == '\'':
			return nil, fmt.Errorf("the path %s has a quote: write no quotes, and a backslash before each dot in a name; "+
				"a backslash before a quote makes it part of a name", text)
		default:
			name = append(name, text[i])
		}
	}
	return path, nil
}

// literally ends errors without a backslash in them, because logs show it doubled.
const literally = "if it is a name, write a backslash before it"

// checkElement checks an element of the path text, as it is written.
func checkElement(text, element string) error {
	switch element {
	case "":
		return fmt.Errorf("the path %q has an empty name: write names with one dot between two of them, as in user.name", text)
	case "$":
		return fmt.Errorf("the path %s has $ as a name: begin with the first name, as in user.name; %s", text, literally)
	case "*":
		return fmt.Errorf("the path %s has * as a name: write the number of one element, as in items.0.id; %s", text, literally)
	}
	if n, err := strconv.Atoi(element); err == nil && n < 0 {
		return fmt.Errorf("the path %s has the number %d: count from 0 at the beginning of the list; %s", text, n, literally)
	}
	return nil
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

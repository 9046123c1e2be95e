// Package palette has the colors that the pages of this module share. It never knows which element has a color.
package palette

import (
	_ "embed" // for the colors
	"strings"
)

//go:embed dark.css
var dark string

// Fill returns a style sheet with the dark colors instead of its comment about them.
func Fill(style string) string { return strings.Replace(style, "\t\t/* dark colors */\n", dark, 1) }

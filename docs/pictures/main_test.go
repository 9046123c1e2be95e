package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

const command = "go run ./docs/pictures"

// The program makes exactly the committed pictures.
func TestPicturesAreUpToDate(t *testing.T) {
	for _, p := range pictures {
		want, err := p.draw()
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
			continue
		}
		got, err := os.ReadFile(p.name + ".svg")
		if err != nil {
			t.Errorf("%v: run %s", err, command)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s.svg is not what it would be now: run %s, and read what docs/algorithms.md says about it", p.name, command)
		}
	}
}

func TestNoPictureIsLeftOver(t *testing.T) {
	files, err := os.ReadDir(".")
	errtest.None(t, err)
	for _, file := range files {
		name, isPicture := strings.CutSuffix(file.Name(), ".svg")
		if isPicture && !slices.ContainsFunc(pictures, func(p picture) bool { return p.name == name }) {
			t.Errorf("nothing draws %s.svg: remove it, or add it to pictures", name)
		}
	}
}

func TestEveryAlgorithmHasAPicture(t *testing.T) {
	for _, a := range algorithms.All() {
		if !slices.ContainsFunc(pictures, func(p picture) bool { return p.name == a.Name && p.quota.Algorithm == a.Name }) {
			t.Errorf("%s has no picture: add it to pictures and run %s", a.Name, command)
		}
	}
}

func TestEveryPictureIsShown(t *testing.T) {
	text, err := os.ReadFile("../algorithms.md")
	errtest.None(t, err)
	for _, p := range pictures {
		if !bytes.Contains(text, []byte("](pictures/"+p.name+".svg)")) {
			t.Errorf("docs/algorithms.md does not show pictures/%s.svg", p.name)
		}
	}
}

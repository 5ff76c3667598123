package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// mutant is one guard and how it is removed.
type mutant struct {
	Guard   string `json:"guard"`   // description
	File    string `json:"file"`    // below the root of the tree
	Old     string `json:"old"`     // occurs exactly once in File, with any white space between its words
	New     string `json:"new"`     // replacement; must compile
	Package string `json:"package"` // whose tests must notice
	Run     string `json:"run"`     // which of them, as of go test -run
}

// load reads all tables of a folder.
func load(dir string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var table []mutant
		if err := yaml.UnmarshalStrict(data, &table); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, table...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no tables; run this in the root of the tree", dir)
	}
	return all, nil
}

// apply returns the text without the guard.
func (m mutant) apply(text string) (string, error) {
	words := strings.Fields(m.Old)
	for i, word := range words {
		words[i] = regexp.QuoteMeta(word)
	}
	old, err := regexp.Compile(strings.Join(words, `\s+`))
	if err != nil {
		return "", err
	}
	found := old.FindAllStringIndex(text, 2)
	if len(words) == 0 || len(found) != 1 {
		return "", fmt.Errorf("%s: %q does not occur exactly once", m.File, m.Old)
	}
	changed := text[:found[0][0]] + strings.TrimSpace(m.New) + text[found[0][1]:]
	if changed == text {
		return "", errors.New("old and new are the same")
	}
	return changed, nil
}

package metrics

import (
	"sync"

	"github.com/nodeagent/nodeagent/pkg/report"
)

const (
	// maxLabel bounds a label, in bytes.
	maxLabel = 128
	// maxReasons bounds how many different reasons are counted: users' plugins and rules create them.
	maxReasons = 500
	// otherReasons stands for all reasons beyond that.
	otherReasons = "OtherReasons"
)

// label makes s a valid label value.
func label(s string) string { return report.Text(s, maxLabel) }

// vocabulary bounds the number of different words of a label.
type vocabulary struct {
	limit int

	mu    sync.Mutex // guards words
	words map[string]bool
}

// bound returns word, or the replacement for all others if there are too many.
func (v *vocabulary) bound(word string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.words[word] {
		return word
	}
	if len(v.words) >= v.limit {
		return otherReasons
	}
	v.words[word] = true
	return word
}

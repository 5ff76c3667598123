package finding

import "fmt"

// Counts is a number of things for each severity.
type Counts map[Severity]int

// Texts returns the counts that are not 0, the most severe first: "2 fatal", "1 warning".
func (c Counts) Texts() (texts []string) {
	for _, s := range []Severity{Fatal, Warning, Info} {
		if c[s] > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", c[s], s))
		}
	}
	return texts
}

package need

import (
	"fmt"
	"path"
	"strings"
)

// line is one of test/skips.txt: a package below the module, a test and the reason for which it may be skipped there.
// The test is a pattern of path.Match, of which each element matches one of a subtest's name:
//
//	pkg/detect TestRealThinPool needs the device mapper with thin pools
type line struct{ pkg, test, reason string }

// names reports whether a line names a test, or a parent of that subtest.
func (l line) names(pkg, test string) bool {
	if l.pkg != pkg {
		return false
	}
	elements := strings.Split(test, "/")
	depth := min(len(elements), strings.Count(l.test, "/")+1)
	matched, _ := path.Match(l.test, strings.Join(elements[:depth], "/")) // parse has tried the pattern
	return matched
}

// parse reads the list. Empty lines and those that begin with # are ignored.
func parse(text []byte) ([]line, error) {
	var lines []line
	for text := range strings.Lines(string(text)) {
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		words := strings.SplitN(text, " ", 3)
		if len(words) < 3 {
			return nil, fmt.Errorf("test/skips.txt: want a package, a test and a reason: %q", text)
		}
		l := line{words[0], words[1], strings.TrimSpace(words[2])}
		if _, err := path.Match(l.test, ""); err != nil {
			return nil, fmt.Errorf("test/skips.txt: %w: %q", err, text)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

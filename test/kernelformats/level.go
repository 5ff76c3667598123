package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// leastLiteral is how many letters of a format a line must contain to prove that it is the line's.
const leastLiteral = 10

// leastKey is the least length of a format's text by which it is found.
const leastKey = 6

// levelled is a format that a line may have.
type levelled struct {
	key     string // its longest text without a verb
	pattern *regexp.Regexp
	weight  int // letters outside verbs
	level   level
}

// printLevels prints each line of a file after the level that the sources give it.
func printLevels(out io.Writer, sources []string, name string) error {
	f := serverParts()
	f.level = anyLevel
	f.files = append(f.files, "arch/...", "drivers/...", "net/...", "init/*.c", "sound/core/*.c")
	byStart := map[string][]*levelled{}
	for _, source := range sources {
		t, err := load(source, wanted([]family{f}))
		if err != nil {
			return err
		}
		for _, p := range f.formats(&t) {
			if l := newLevelled(p); l != nil {
				byStart[l.key[:leastKey]] = append(byStart[l.key[:leastKey]], l)
			}
		}
	}
	file, err := os.Open(name) //nolint:gosec // the user's
	if err != nil {
		return err
	}
	defer file.Close() // was only read
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		fmt.Fprintf(out, "%s | %s\n", levelOf(byStart, scanner.Text()), scanner.Text())
	}
	return nil
}

func newLevelled(p printed) *levelled {
	text := strings.TrimRight(p.text, "\n")
	l := &levelled{level: p.level}
	var pattern strings.Builder
	for i, part := range verbs.Split(text, -1) {
		if i > 0 {
			pattern.WriteString(`.*?`)
		}
		pattern.WriteString(regexp.QuoteMeta(part))
		l.weight += len(part)
		if len(part) > len(l.key) {
			l.key = part
		}
	}
	if l.weight < leastLiteral || len(l.key) < leastKey {
		return nil
	}
	l.pattern = regexp.MustCompile(pattern.String())
	return l
}

// levelOf returns the level of the format that covers most of a line; if several do, the worst level.
func levelOf(byStart map[string][]*levelled, line string) (found level) {
	best := 0
	for i := 0; i+leastKey <= len(line); i++ {
		for _, l := range byStart[line[i:i+leastKey]] {
			if l.weight < best || l.weight == best && l.level < found || !strings.HasPrefix(line[i:], l.key) ||
				!l.pattern.MatchString(line) {
				continue
			}
			best, found = l.weight, l.level
		}
	}
	return found
}

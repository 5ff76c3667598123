package npd

import (
	"slices"
	"strings"
)

// Buffer holds the newest lines of a log, as many as the file says, and matches patterns against all of them together.
// Its results are exactly those of node-problem-detector: missing lines count as empty ones. It is not safe for
// concurrent use.
type Buffer struct {
	patterns []*pattern
	lines    []string
	may      [][]bool // by line: the patterns that may match in it
	count    []int    // by pattern: in how many of the lines
	next     int      // where the next line goes
	filled   int
	joined   string // all lines; empty: not built yet
}

// NewBuffer returns an empty buffer of some lines.
func NewBuffer(size int, exprs ...string) (*Buffer, error) {
	var patterns []*pattern
	for _, expr := range exprs {
		p, err := newPattern(expr)
		if err != nil {
			return nil, err
		}
		patterns = append(patterns, p)
	}
	return newBuffer(max(size, 1), patterns), nil
}

func newBuffer(size int, patterns []*pattern) *Buffer {
	b := &Buffer{patterns: patterns, lines: make([]string, size), may: make([][]bool, size),
		count: make([]int, len(patterns))}
	flags := make([]bool, size*len(patterns))
	for i := range b.may {
		b.may[i] = flags[i*len(patterns):][:len(patterns)]
	}
	return b
}

// Push adds a line.
func (b *Buffer) Push(line string) {
	may := b.may[b.next]
	for i, p := range b.patterns {
		if may[i] {
			b.count[i]--
		}
		if may[i] = p.mayMatch(line); may[i] {
			b.count[i]++
		}
	}
	b.lines[b.next], b.joined = line, ""
	b.next = (b.next + 1) % len(b.lines)
	b.filled = min(b.filled+1, len(b.lines))
}

// newest returns the index of the line before the next one, and so on backwards.
func (b *Buffer) newest(back int) int { return (b.next - 1 - back + 2*len(b.lines)) % len(b.lines) }

// Match returns the lines that the i-th pattern matches, joined; ok is false if there is no match.
func (b *Buffer) Match(i int) (text string, ok bool) {
	p, last := b.patterns[i], b.newest(0)
	if p.lastLine {
		line := b.lines[last]
		if !b.may[last][i] {
			return "", false
		}
		if len(b.lines) > 1 { // there is a line before it, even if an empty one: it is not at the start of the text
			return line, p.re.MatchString("\n" + line)
		}
		return line, p.re.MatchString(line)
	}
	if b.count[i] == 0 {
		return "", false
	}
	all := b.all()
	at := p.re.FindStringIndex(all)
	if at == nil {
		return "", false
	}
	return b.from(len(all) - at[0] - 1), true
}

// all returns the lines, the oldest first.
func (b *Buffer) all() string {
	if b.joined == "" {
		b.joined = strings.Join(slices.Concat(b.lines[b.next:], b.lines[:b.next]), "\n")
	}
	return b.joined
}

// from returns the newest lines, starting with the line that holds the byte at the given distance from the end of the
// joined text.
func (b *Buffer) from(behind int) string {
	var matched []string
	for total := 0; len(matched) < b.filled && (len(matched) == 0 || total <= behind); {
		line := b.lines[b.newest(len(matched))]
		matched = append(matched, line)
		total += len(line) + 1 // the newline
	}
	slices.Reverse(matched)
	return strings.Join(matched, "\n")
}

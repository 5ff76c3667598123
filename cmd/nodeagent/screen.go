package main

import (
	"io"
	"log/slog"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// screen is the width of output for people, and whether it may be in colour. Colour is for terminals only: output to a
// file or a pipe is plain.
type screen struct {
	width  int
	colour bool
}

const (
	plainWidth = 120 // of files and pipes
	minWidth   = 60
	maxWidth   = 140 // longer lines are hard to read
)

func screenOf(w io.Writer) screen {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return screen{width: plainWidth}
	}
	s := screen{width: plainWidth, colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
		s.width = min(max(width, minWidth), maxWidth)
	}
	return s
}

// The colours mean severity only.
const (
	red    = "31;1"
	yellow = "33"
	green  = "32"
	faint  = "2"
	bold   = "1"
)

// paint colours a text on a terminal.
func (s screen) paint(colour, text string) string {
	if !s.colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// column pads a text to a width and paints it: the padding must not count the colour.
func (s screen) column(colour, text string, width int) string {
	return s.paint(colour, text) + strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0))
}

// wrap breaks a text into lines of the screen's width, of which all but the first are indented.
func (s screen) wrap(text string, first, indent int) string {
	var b strings.Builder
	at := first
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > s.width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// oneLine joins the lines of an error.
func oneLine(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ") }

// page prints a page of the documentation: paragraphs and items are wrapped; emphasis and commands become bold. Without
// colour the marks of commands stay: they show where a command ends.
func (s screen) page(markdown string) string {
	var b strings.Builder
	for line := range strings.Lines(markdown) {
		line = strings.TrimSuffix(line, "\n")
		indent := 0
		if strings.HasPrefix(line, "* ") {
			indent = 2
		}
		line = s.wrap(line, 0, indent)
		line = s.embolden(line, "**")
		if s.colour {
			line = s.embolden(line, "`")
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// embolden paints text between two marks.
func (s screen) embolden(text, mark string) string {
	for strings.Count(text, mark) >= 2 {
		before, rest, _ := strings.Cut(text, mark)
		inner, after, _ := strings.Cut(rest, mark)
		text = before + s.paint(bold, inner) + after
	}
	return text
}

// quiet is the log of verbs whose answer goes to stdout.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// groupedBy splits things by a key; groups and their members keep the order of the things.
func groupedBy[T any](things []T, key func(T) string) [][]T {
	var groups [][]T
	index := map[string]int{}
	for _, thing := range things {
		k := key(thing)
		i, ok := index[k]
		if !ok {
			i = len(groups)
			index[k], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], thing)
	}
	return groups
}

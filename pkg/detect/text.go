package detect

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	lineText = 100 // bytes of a line from outside in a message
	nameText = 80  // bytes of a name from outside
)

// plainText shortens text from outside for a message: valid UTF-8, one line, nothing that a terminal would obey, at most so
// many bytes.
func plainText(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsGraphic(r)
	}), " ")
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// firstOf joins the first names of a list and says how many more there are.
func firstOf(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// tellHitPods adds the pods that a fault hits to what a finding says.
func tellHitPods(f *finding.Finding, pods []string) {
	tellPods(f, fmt.Sprintf("; hits %d pods: ", len(pods)), pods)
}

// tellPods adds pods to what a finding says, after words that tell what they have to do with it.
func tellPods(f *finding.Finding, words string, pods []string) {
	if len(pods) == 0 {
		return
	}
	f.Facts["pods"], f.Facts["podCount"] = firstOf(pods, 20), strconv.Itoa(len(pods))
	f.Message += words + firstOf(pods, 5)
}

// tellNeeded adds what the node needs a disk for to what a finding says.
func tellNeeded(f *finding.Finding, paths []string) {
	if len(paths) == 0 {
		return
	}
	f.Facts["needed"] = strings.Join(paths, ", ")
	f.Message += "; the node needs it for " + strings.Join(paths, ", ")
}

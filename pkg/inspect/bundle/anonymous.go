package bundle

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// anonymize replaces the names of pods, namespaces and nodes, the same name with the same hash everywhere. The key of
// the hash is random and not kept, so that names cannot be guessed. UIDs, paths and names of volumes stay.
func anonymize(b Bundle) Bundle {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails: crypto/rand
	a := anonymizer{key: key, names: make(map[string]bool)}
	a.collect(b)
	b.Node, b.Evidence.Inventory.Cluster.Node = a.hash(b.Node), a.hash(b.Evidence.Inventory.Cluster.Node)
	return rewrite(b, rewriter{text: a.text, pod: a.pod, fact: a.fact})
}

type anonymizer struct {
	key   []byte
	names map[string]bool
}

// collect finds all names.
func (a *anonymizer) collect(b Bundle) {
	nodes := []string{b.Node, b.Evidence.Inventory.Cluster.Node}
	for _, text := range b.Evidence.Inventory.Cluster.OnOtherNodes { // default/web on "node-1"
		_, node, _ := strings.Cut(text, ` on "`)
		nodes = append(nodes, strings.TrimSuffix(node, `"`))
	}
	names := slices.Clone(nodes)
	for _, name := range b.Evidence.Inventory.Static.Missing {
		namespace, name, _ := strings.Cut(name, "/")
		names = append(names, namespace, name)
	}
	_ = rewrite(b, rewriter{pod: func(p object.Pod) object.Pod {
		names = append(names, p.Namespace, p.Name)
		return p
	}})
	for _, name := range names {
		a.names[name] = true
		for _, node := range nodes { // the manifest of a static pod has the pod's name without the node's
			if base, ok := strings.CutSuffix(name, "-"+node); ok && node != "" {
				a.names[base] = true
			}
		}
	}
	delete(a.names, "")
}

func (a *anonymizer) hash(name string) string {
	if name == "" {
		return ""
	}
	sum := hmac.New(sha256.New, a.key)
	sum.Write([]byte(name))
	return "anon-" + hex.EncodeToString(sum.Sum(nil))[:12]
}

func (a *anonymizer) pod(p object.Pod) object.Pod {
	return object.Pod{UID: p.UID, Namespace: a.hash(p.Namespace), Name: a.hash(p.Name)}
}

// fact replaces facts that are names themselves. text does not replace a string that is a name as a whole: it may be a
// word that the evaluation distinguishes, such as the source "api".
func (a *anonymizer) fact(key, value string) string {
	if slices.Contains([]string{"name", "command", "volume", "network"}, key) && a.names[value] {
		return a.hash(value)
	}
	return value
}

// text replaces the names within a longer text. A name ends before any character but a letter, digit or hyphen.
func (a *anonymizer) text(s string) string {
	if a.names[s] {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		n := wordLength(s)
		if n == 0 {
			b.WriteByte(s[0])
			s = s[1:]
			continue
		}
		end := a.longestName(s, n)
		if end > 0 {
			b.WriteString(a.hash(s[:end]))
		} else {
			end = n
			b.WriteString(s[:end])
		}
		s = s[end:]
	}
	return b.String()
}

// longestName returns the length of the longest name at the beginning of s, whose first word has n bytes. Names may
// consist of several words separated by dots.
func (a *anonymizer) longestName(s string, n int) int {
	longest := 0
	for end := n; ; {
		if a.names[s[:end]] {
			longest = end
		}
		if end >= len(s) || s[end] != '.' {
			return longest
		}
		next := wordLength(s[end+1:])
		if next == 0 {
			return longest
		}
		end += 1 + next
	}
}

func wordLength(s string) int {
	n := strings.IndexFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-'
	})
	if n < 0 {
		return len(s)
	}
	return n
}

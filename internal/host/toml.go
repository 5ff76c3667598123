package host

import (
	"errors"
	"fmt"
	"strings"
)

// maxTOML bounds a configuration file, in bytes.
const maxTOML = 1 << 20

// ParseTOMLStrings returns the strings and arrays of strings of a TOML file by their full key, its parts joined by dots:
//
//	[plugins."io.containerd.grpc.v1.cri".cni]
//	  conf_dir = "/etc/cni/net.d"                  plugins.io.containerd.grpc.v1.cri.cni.conf_dir
//
// It is tolerant where that is safe: values of other types, inline tables and arrays of tables are skipped, as are
// multi-line strings. A string that does not end is an error that names the line.
func ParseTOMLStrings(data []byte) (map[string][]string, error) {
	if len(data) > maxTOML {
		return nil, fmt.Errorf("larger than %d bytes", maxTOML)
	}
	s := &tomlScanner{values: make(map[string][]string)}
	for line := range strings.Lines(string(data)) {
		s.line++
		if err := s.scan(strings.TrimSpace(line)); err != nil {
			return nil, fmt.Errorf("line %d: %w", s.line, err)
		}
	}
	return s.values, nil
}

type tomlScanner struct {
	line    int
	table   string
	skip    bool   // inside an array of tables: its keys are not unique
	quote   string // the end of the multi-line string that we are in
	pending string // key of an array that goes on
	values  map[string][]string
}

var errOpenString = errors.New("string without an end")

func (s *tomlScanner) scan(line string) error {
	switch {
	case s.quote != "":
		if strings.Contains(line, s.quote) {
			s.quote = ""
		}
		return nil
	case s.pending != "":
		return s.elements(line)
	case strings.HasPrefix(line, "[["):
		s.skip = true
		return nil
	case strings.HasPrefix(line, "["):
		key, _, err := tomlKey(line[1:], ']')
		s.table, s.skip = key+".", false
		return err
	}
	key, rest, err := tomlKey(line, '=')
	if err != nil || key == "" {
		return err
	}
	return s.value(s.table+key, strings.TrimSpace(rest))
}

func (s *tomlScanner) value(key, text string) error {
	if s.table == "" || s.table == "." {
		key = strings.TrimPrefix(key, ".")
	}
	for _, quote := range []string{`"""`, `'''`} {
		if rest, ok := strings.CutPrefix(text, quote); ok {
			if !strings.Contains(rest, quote) {
				s.quote = quote
			}
			return nil
		}
	}
	if s.skip || text == "" {
		return nil
	}
	switch text[0] {
	case '"', '\'':
		value, _, err := tomlString(text)
		if err == nil {
			s.values[key] = []string{value}
		}
		return err
	case '[':
		s.pending = key
		s.values[key] = nil
		return s.elements(text[1:])
	}
	return nil
}

// elements reads the strings of an array up to the end of the line or of the array.
func (s *tomlScanner) elements(text string) error {
	for {
		text = strings.TrimLeft(text, " \t,")
		switch {
		case text == "" || text[0] == '#':
			return nil
		case text[0] == ']':
			s.pending = ""
			return nil
		case text[0] == '"' || text[0] == '\'':
			value, rest, err := tomlString(text)
			if err != nil {
				return err
			}
			s.values[s.pending] = append(s.values[s.pending], value)
			text = rest
		default: // numbers, nested arrays, tables
			_, size := nextElement(text)
			text = text[size:]
		}
	}
}

// nextElement skips something that is no string.
func nextElement(text string) (string, int) {
	end := strings.IndexAny(text[1:], `,]"'#`)
	if end < 0 {
		return text, len(text)
	}
	return text[:end+1], end + 1
}

// tomlKey reads a key up to the given end and returns its parts joined by dots. The key is empty for empty and comment
// lines, and for what has no such end.
func tomlKey(text string, end byte) (key, rest string, err error) {
	var parts []string
	var bare strings.Builder
	for i := 0; i < len(text); {
		switch c := text[i]; c {
		case end:
			return strings.Join(append(parts, strings.TrimSpace(bare.String())), "."), text[i+1:], nil
		case '#':
			return "", "", nil
		case '.':
			parts = append(parts, strings.TrimSpace(bare.String()))
			bare.Reset()
			i++
		case '"', '\'':
			part, after, err := tomlString(text[i:])
			if err != nil {
				return "", "", err
			}
			bare.WriteString(part)
			i = len(text) - len(after)
		default:
			bare.WriteByte(c)
			i++
		}
	}
	return "", "", nil
}

// tomlString reads the quoted string that text begins with. Of the escapes those that paths may need are understood.
func tomlString(text string) (value, rest string, err error) {
	quote := text[0]
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == quote:
			return b.String(), text[i+1:], nil
		case c == '\\' && quote == '"' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", errOpenString
}

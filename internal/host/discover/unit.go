package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// unitDirs are systemd's directories of units, in its order (systemd.unit(5)).
func unitDirs() []string {
	return []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
		"/usr/lib/systemd/system", "/lib/systemd/system"}
}

// unitText is the part of a service's files that defines the started program.
type unitText struct {
	exec        string
	environment map[string]string
	files       []string // of the environment, "-" before those that may be missing
}

// readUnit returns the arguments that a service of systemd starts its program with, from its file, its drop-ins and the
// files of its environment, as root wrote them. An error that wraps fs.ErrNotExist means that there is no such unit.
//
//	[Service]
//	Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
//	EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
//	ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS
func readUnit(files host.Files, name string) (args []string, environment map[string]string, err error) {
	text := unitText{environment: map[string]string{}}
	var data []byte
	for _, dir := range unitDirs() {
		if data, err = files.ReadOwned(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return nil, nil, err
	}
	text.apply(string(data))
	for _, path := range dropInsOfUnit(files, name) {
		data, err := files.ReadOwned(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		text.apply(string(data))
	}
	for _, path := range text.files {
		data, err := files.ReadOwned(strings.TrimPrefix(path, "-"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("environment of %s: %w", name, err)
		}
		for line := range strings.Lines(string(data)) {
			text.setEnvironment(strings.TrimSpace(line))
		}
	}
	return text.arguments(), text.environment, nil
}

// dropInsOfUnit lists them in systemd's order: by name; one in a directory of higher priority hides others of its name.
func dropInsOfUnit(files host.Files, name string) []string {
	paths := map[string]string{}
	for _, dir := range unitDirs() {
		names, _ := files.List(filepath.Join(dir, name+".d")) // usually there is none
		for _, n := range names {
			if strings.HasSuffix(n, ".conf") && paths[n] == "" && len(paths) < maxDropIns {
				paths[n] = filepath.Join(dir, name+".d", n)
			}
		}
	}
	var sorted []string
	for _, n := range slices.Sorted(maps.Keys(paths)) {
		sorted = append(sorted, paths[n])
	}
	return sorted
}

// apply merges one file into u: a list set to an empty value starts anew (systemd.service(5)).
func (u *unitText) apply(text string) {
	section := ""
	for _, line := range joinLines(text) {
		if strings.HasPrefix(line, "[") {
			section = line
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || section != "[Service]" {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "ExecStart":
			u.exec = value
		case "Environment":
			for _, word := range splitWords(value) {
				u.setEnvironment(word)
			}
		case "EnvironmentFile":
			if u.files = append(u.files, strings.Trim(value, `"'`)); value == "" {
				u.files = nil
			}
		}
	}
}

// joinLines joins lines that end with a backslash with the next one, and leaves comments out.
func joinLines(text string) []string {
	var lines []string
	open := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" && open == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		rest, more := strings.CutSuffix(line, `\`)
		if open += rest; more {
			open += " "
			continue
		}
		lines, open = append(lines, open), ""
	}
	if open != "" {
		lines = append(lines, open)
	}
	return lines
}

func (u *unitText) setEnvironment(assignment string) {
	name, value, ok := strings.Cut(assignment, "=")
	if !ok || name == "" || strings.HasPrefix(name, "#") || len(u.environment) > 1000 {
		return
	}
	if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		value = value[1 : n-1]
	}
	u.environment[name] = value
}

// arguments are the words of the command with variables replaced: $NAME as a word becomes several, ${NAME} is put in.
func (u *unitText) arguments() []string {
	var args []string
	for _, word := range splitWords(strings.TrimLeft(u.exec, "@-:+!|")) {
		if name, ok := strings.CutPrefix(word, "$"); ok && !strings.HasPrefix(name, "{") {
			args = append(args, splitWords(u.environment[name])...)
			continue
		}
		for name, value := range u.environment {
			word = strings.ReplaceAll(word, "${"+name+"}", value)
		}
		args = append(args, word)
	}
	return args
}

// splitWords splits at white space outside of quotes, as systemd and shells do.
func splitWords(text string) []string {
	var words []string
	var word strings.Builder
	quote, inside := rune(0), false
	for _, c := range text {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '"' || c == '\'':
			quote, inside = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if word.Len() > 0 || inside {
				words = append(words, word.String())
			}
			word.Reset()
			inside = false
		default:
			word.WriteRune(c)
		}
	}
	if word.Len() > 0 || inside {
		words = append(words, word.String())
	}
	return words
}

package checks

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/pkg/detect"
)

// Settings holds the settings of every check under its ID. The zero value has none; see DefaultSettings.
type Settings struct {
	ByID map[string]any `yaml:",inline"` // *With[...] of the check's own settings

	Ignored []string `yaml:"-"` // settings of checks that were removed, for messages
}

// Removed returns the checks of earlier releases that were removed, and the reasons. A configuration that names one is
// still valid: its settings are ignored.
func Removed() map[string]string {
	return map[string]string{
		"address-overlap": "a node knows only the part of the cluster's ranges that its own pods get",
		"entropy":         "since Linux 5.18 the kernel's random numbers do not run out",
	}
}

// entry is one line of the list: how a check is configured and built.
type entry struct {
	id       string
	defaults func() any                                         // *With[S]
	build    func(settings any, deps Deps) (detect.Check, bool) // false if it is switched off
}

// plain is a check that needs only its settings.
func plain[S any](defaults func() S, build func(S) detect.Check) entry {
	return aided(defaults, func(s S, _ Deps) detect.Check { return build(s) })
}

// withStateAndSettings is a check that also keeps state across restarts.
func withStateAndSettings[S any](defaults func() S, build func(S, detect.StateStore) detect.Check) entry {
	return aided(defaults, func(s S, a Deps) detect.Check { return build(s, a.State) })
}

// aided is a check that needs Deps. It is built once to read its ID.
func aided[S any](defaults func() S, build func(S, Deps) detect.Check) entry {
	return entry{
		id:       build(defaults(), Deps{}).ID,
		defaults: func() any { return &With[S]{Common: Common{Enabled: true}, Settings: defaults()} },
		build: func(settings any, deps Deps) (detect.Check, bool) {
			s := settings.(*With[S])
			return s.apply(build(s.Settings, deps)), s.Enabled
		},
	}
}

// bare holds the settings of a check without its own.
type bare struct{}

func noSettings() bare { return bare{} }

// simple is a check without settings of its own.
func simple(build func() detect.Check) entry {
	return plain(noSettings, func(bare) detect.Check { return build() })
}

// stateful is a check without settings of its own that keeps state across restarts.
func stateful(build func(detect.StateStore) detect.Check) entry {
	return withStateAndSettings(noSettings, func(_ bare, store detect.StateStore) detect.Check { return build(store) })
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise: every check is on.
func DefaultSettings() Settings {
	s := Settings{ByID: map[string]any{}}
	for _, e := range list() {
		s.ByID[e.id] = e.defaults()
	}
	return s
}

// Checks returns all checks that the settings enable.
func Checks(s Settings, deps Deps) []detect.Check {
	var checks []detect.Check
	for _, e := range list() {
		settings, ok := s.ByID[e.id]
		if !ok {
			continue
		}
		if check, on := e.build(settings, deps); on {
			check.Suggest = suggest
			checks = append(checks, check)
		}
	}
	return checks
}

// SettingsOf returns the settings of one check. It is nil if there is no such check, or its settings are of another
// type.
func SettingsOf[S any](s Settings, id string) *With[S] {
	found, _ := s.ByID[id].(*With[S])
	return found
}

// UnmarshalYAML reads settings over the existing ones. The decoder of the file also reads each check's settings, and so
// as strictly; all mistakes are reported at once.
func (s *Settings) UnmarshalYAML(unmarshal func(any) error) error {
	var parts map[yamlKey]yamlValue
	if err := unmarshal(&parts); err != nil {
		return err
	}
	var mistakes []string
	for _, key := range slices.SortedFunc(maps.Keys(parts), yamlKey.compare) {
		if why, ok := Removed()[key.text]; ok {
			s.Ignored = append(s.Ignored, fmt.Sprintf("line %d: checks.%s is ignored: this check was removed: %s",
				key.line, key.text, why))
			continue
		}
		settings, ok := s.ByID[key.text]
		if !ok {
			mistakes = append(mistakes, fmt.Sprintf("line %d: field %s not found in type checks.Settings", key.line,
				key.text))
			continue
		}
		if parts[key] == nil { // an empty "load:"
			continue
		}
		err := parts[key](settings)
		if wrong, ok := errors.AsType[*yaml.TypeError](err); ok {
			mistakes = append(mistakes, wrong.Errors...)
		} else if err != nil {
			return err
		}
	}
	if len(mistakes) > 0 {
		return &yaml.TypeError{Errors: mistakes}
	}
	return nil
}

// yamlKey is a key of a mapping with its place in the file.
type yamlKey struct {
	text string
	line int
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (k *yamlKey) UnmarshalYAML(node *yaml.Node) error {
	k.text, k.line = node.Value, node.Line
	return nil
}

func (k yamlKey) compare(o yamlKey) int { return cmp.Compare(k.line, o.line) }

// yamlValue decodes a value into its argument. This form, unlike a node, keeps the decoder strict.
type yamlValue func(into any) error

// UnmarshalYAML keeps the value until its key is known.
func (v *yamlValue) UnmarshalYAML(unmarshal func(any) error) error {
	*v = unmarshal
	return nil
}

// MarshalYAML returns the settings of all checks by ID, in the order of the list.
func (s Settings) MarshalYAML() (any, error) {
	all := &yaml.Node{Kind: yaml.MappingNode}
	for _, e := range list() {
		settings, ok := s.ByID[e.id]
		if !ok {
			continue
		}
		key, value := &yaml.Node{}, &yaml.Node{}
		key.SetString(e.id)
		if err := value.Encode(settings); err != nil {
			return nil, fmt.Errorf("%s: %w", e.id, err)
		}
		all.Content = append(all.Content, key, value)
	}
	return all, nil
}

package checks

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/detect"
)

// Settings holds the settings of every check under its ID. The zero value has none; see DefaultSettings.
type Settings struct {
	// Fields points to a struct made of the list, with one With[...] for each check.
	Fields any `yaml:",inline"`
}

// entry is one line of the list: how a check is configured and made.
type entry struct {
	id       string
	defaults func() any                                         // *With[S]
	build    func(settings any, aids Deps) (detect.Check, bool) // false where it is switched off
}

// plain is a check that needs nothing but its settings.
func plain[S any](id string, defaults func() S, build func(S) detect.Check) entry {
	return aided(id, defaults, func(s S, _ Deps) detect.Check { return build(s) })
}

// aided is a check that is given more.
func aided[S any](id string, defaults func() S, build func(S, Deps) detect.Check) entry {
	return entry{
		id:       id,
		defaults: func() any { return &With[S]{Common: Common{Enabled: true}, Settings: defaults()} },
		build: func(settings any, aids Deps) (detect.Check, bool) {
			s := settings.(*With[S])
			return s.apply(build(s.Settings, aids)), s.Enabled
		},
	}
}

// bare is the settings of a check that has none but what every check has.
type bare struct{}

func noSettings() bare { return bare{} }

// simple is a check without settings of its own.
func simple(id string, build func() detect.Check) entry {
	return plain(id, noSettings, func(bare) detect.Check { return build() })
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise: every check is on.
func DefaultSettings() Settings {
	entries := list()
	fields := make([]reflect.StructField, 0, len(entries))
	for i, e := range entries {
		fields = append(fields, reflect.StructField{
			Name: fmt.Sprintf("Check%d", i), Type: reflect.TypeOf(e.defaults()).Elem(),
			Tag: reflect.StructTag(`yaml:"` + e.id + `"`),
		})
	}
	all := reflect.New(reflect.StructOf(fields))
	for i, e := range entries {
		all.Elem().Field(i).Set(reflect.ValueOf(e.defaults()).Elem())
	}
	return Settings{Fields: all.Interface()}
}

// Checks returns all checks that the settings enable.
func Checks(s Settings, aids Deps) []detect.Check {
	if s.Fields == nil {
		return nil
	}
	fields := reflect.ValueOf(s.Fields).Elem()
	var checks []detect.Check
	for i, e := range list() {
		if check, on := e.build(fields.Field(i).Addr().Interface(), aids); on {
			checks = append(checks, check)
		}
	}
	aids.Sources.Enable(checks)
	return checks
}

// SettingsOf returns the settings of one check. It is nil when there is no such check, or its settings are of another type.
func SettingsOf[S any](s Settings, id string) *With[S] {
	i := slices.IndexFunc(list(), func(e entry) bool { return e.id == id })
	if i < 0 || s.Fields == nil {
		return nil
	}
	found, _ := reflect.ValueOf(s.Fields).Elem().Field(i).Addr().Interface().(*With[S])
	return found
}

// UnmarshalYAML reads settings over those that are there. This form keeps the decoder strict.
func (s *Settings) UnmarshalYAML(unmarshal func(any) error) error { return unmarshal(s.Fields) }

// MarshalYAML returns the settings of all checks by ID.
func (s Settings) MarshalYAML() (any, error) { return s.Fields, nil }

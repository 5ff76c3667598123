package criticaldaemonsets

import (
	"testing"
)

func TestSettingsProblems(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(s *Settings)
		ok   bool
	}{
		{"defaults", func(*Settings) {}, true},
		{"selector", func(s *Settings) { s.Selector = "a in (" }, false},
		{"no namespace", func(s *Settings) { s.DaemonSets = []string{"proxy"} }, false},
		{"ignore", func(s *Settings) { s.Ignore = []string{"a/b/c"} }, false},
	} {
		s := DefaultSettings()
		tt.set(&s)
		if err := s.Validate(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

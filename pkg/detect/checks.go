package detect

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Settings holds the settings of every check under its ID.
type Settings struct {
	FilesystemReadonly With[FilesystemReadonlySettings] `yaml:"filesystem-readonly"`
	Load               With[LoadSettings]               `yaml:"load"`
	KubeletHealth      With[KubeletHealthSettings]      `yaml:"kubelet-health"`
	RuntimeHealth      With[RuntimeHealthSettings]      `yaml:"runtime-health"`
	CSIRegistration    With[CSIRegistrationSettings]    `yaml:"csi-registration"`
	CriticalDaemonSets With[CriticalDaemonSetsSettings] `yaml:"critical-daemonsets"`
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise: every check is on.
func DefaultSettings() Settings {
	return Settings{
		FilesystemReadonly: on(DefaultFilesystemReadonlySettings()),
		Load:               on(DefaultLoadSettings()),
		KubeletHealth:      on(DefaultKubeletHealthSettings()),
		RuntimeHealth:      on(DefaultRuntimeHealthSettings()),
		CSIRegistration:    on(DefaultCSIRegistrationSettings()),
		CriticalDaemonSets: on(DefaultCriticalDaemonSetsSettings()),
	}
}

// Checks is THE list: all checks that the settings enable.
func Checks(s Settings, aids Aids) []Check {
	return enabled(
		s.FilesystemReadonly.apply(FilesystemReadonly(s.FilesystemReadonly.Settings)),
		s.Load.apply(Load(s.Load.Settings)),
		s.KubeletHealth.apply(KubeletHealth(s.KubeletHealth.Settings)),
		s.RuntimeHealth.apply(RuntimeHealth(s.RuntimeHealth.Settings)),
		s.CSIRegistration.apply(CSIRegistration(s.CSIRegistration.Settings, aids.Memory)),
		s.CriticalDaemonSets.apply(CriticalDaemonSets(s.CriticalDaemonSets.Settings, aids.DaemonSets)),
	)
}

// Aids are what some checks are given besides the read door. The zero value is good: such a check then remembers nothing
// from one run to the next, or leaves a question open.
type Aids struct {
	Memory     Memory
	DaemonSets DaemonSetLookups
}

// With is the settings of one check with what every check has.
type With[S any] struct {
	Common   `yaml:",inline"`
	Settings S `yaml:",inline"`
}

// Common is what can be set of every check.
type Common struct {
	Enabled  bool             `yaml:"enabled"`
	Every    time.Duration    `yaml:"every,omitempty"`    // interval between looks; the check's own unless set
	Severity finding.Severity `yaml:"severity,omitempty"` // of all findings; their own unless set
}

func on[S any](settings S) With[S] { return With[S]{Common: Common{Enabled: true}, Settings: settings} }

// apply returns the check as the user wants it; a check without ID is one that is switched off.
func (c Common) apply(check Check) Check {
	if !c.Enabled {
		return Check{}
	}
	if c.Every > 0 {
		check.Every = c.Every
	}
	check.Severity = c.Severity
	return check
}

func enabled(checks ...Check) []Check {
	var on []Check
	for _, c := range checks {
		if c.ID != "" {
			on = append(on, c)
		}
	}
	return on
}

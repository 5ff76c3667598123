// Package kubernetes finds faults of kubelet and of the Node: restarts, certificates, synchronisation, evictions,
// registration.
package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubelet-config reads the files that kubelet reads when it starts, its --config file and the *.conf files of its
// --config-dir, and saves a hash of them for each kubelet process (its PID and start time in /proc/PID/stat).
//
// https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/.
//
// Kubelet's effective configuration (/configz) takes a right (nodes/configz) that the agent does not ask for.

const kubeletConfigKey = "kubelet-config/read"

// writtenWithin is how long after its start a program that contains kubelet may still write kubelet's files.
const writtenWithin = 5 * time.Minute

// KubeletConfig finds a kubelet that was not restarted after a change of its configuration. The store may be nil.
func KubeletConfig(store detect.StateStore) detect.Check {
	m := &configState{saved: detect.Saved[configRead]{Store: store, Key: kubeletConfigKey}}
	return detect.Check{
		ID:      "kubelet-config",
		Domain:  "kubernetes",
		Summary: "kubelet's configuration files were changed after kubelet read them",
		Advice: "Check what was changed (`stat` of the files shows when). Then run `systemctl restart kubelet` when " +
			"a restart is acceptable, or restore the old content.",
		Doc: detect.Doc{
			Reads: []string{"kubelet's --config file and --config-dir", "/proc/PID/stat of kubelet"},
			Why: "Kubelet reads its configuration only when it starts: eviction thresholds, reserved resources and " +
				"limits differ from the files, and all change at once at the next restart, upgrade or reboot.",
			Faults: []detect.Fault{
				{Reason: "KubeletConfigNotApplied", Severity: finding.Info,
					When: "for 30 minutes the files have differed from what they were when the agent first observed " +
						"this kubelet"},
			},
			FalseAlarms: "Files that others than root can write, or that cannot be parsed, make the check answer that " +
				"it could not tell, and each other check that would have used a setting of them. A change before the agent first observed this kubelet is not noticed. A rollout that " +
				"writes the file and then restarts kubelet has 30 minutes.",
		},
		Every:    10 * time.Minute,
		Deadline: 5 * time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Runs: 2, For: 30 * time.Minute}, BlindAfter: time.Hour},
		Run:      m.observe,
	}
}

// configState is the known part of the configuration that kubelet read when it started.
type configState struct {
	saved detect.Saved[configRead]
	read  configRead
}

type configRead struct {
	Boot  string `json:"boot"`
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	Sum   string `json:"sum"`
}

func (m *configState) observe(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	process, names, err := discover.KubeletConfigFiles(h)
	if err == nil {
		err = discover.CheckKubeletConfiguration(h, names)
	}
	if err == nil { // files that only discovery has read, as those of a distribution
		err = h.Doubts.Of(host.KubeletRoot, host.Kubeconfig, host.KubeletHealthz, host.KubeletAPI)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("kubelet's configuration: %w", err)
	case len(names) == 0 || process.PID == 0 && h.Paths.KubeletConfig == "":
		return nil, finding.NotApplicable("kubelet has no configuration file, or there is no kubelet")
	case process.PID == 0:
		return nil, nil // the next kubelet will read the present files
	}
	sum := sha256.New()
	for _, name := range names {
		data, err := h.Files.Read(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a removed file is a change too
			return nil, fmt.Errorf("kubelet's configuration: %w", err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(data), data)
	}
	if _, embedded := distro.Embedding(process.Comm); embedded && process.Age(h.Clock().SinceBoot) < writtenWithin {
		return nil, nil // the program may still be writing the files for its kubelet
	}
	now := configRead{Boot: h.Clock().Boot, PID: process.PID, Start: process.StartTime,
		Sum: hex.EncodeToString(sum.Sum(nil))}
	if m.read.PID == 0 {
		m.read, _ = m.saved.Load(func(read configRead) bool { return read.Boot == now.Boot })
	}
	if m.read.Boot != now.Boot || m.read.PID != now.PID || m.read.Start != now.Start {
		m.read = now
		m.saved.Save(now)
	}
	if m.read.Sum == now.Sum {
		return nil, nil
	}
	return []finding.Finding{{
		Subject: checkkit.KubeletSubject(), Severity: finding.Info, Reason: "KubeletConfigNotApplied",
		Message: fmt.Sprintf(
			"kubelet (pid %d) runs with an older configuration than %s: it reads it only when it starts", process.PID,
			checkkit.Sanitize(finding.JoinFirst(names, 3), checkkit.MaxReported)),
	}}, nil
}

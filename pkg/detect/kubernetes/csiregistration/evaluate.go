package csiregistration

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// csiDriver holds the readings of one run about a driver that should be here.
type csiDriver struct {
	Name    string
	Kind    string   // of the subject: csi-driver, or plugin-socket if the driver's name is not known
	Because []string // why it should be here
	Listed  bool     // by the configuration
	Here    bool     // it is or was registered, according to kubelet or its socket
	Pods    []csiPod // that run it here
	UsedBy  []string // pods with volumes of it, as namespace/name
	Mounted bool     // some of these volumes are or were mounted here, or kubelet knows their claims

	Critical bool // one of its pods is, which takes an administrator

	Socket   string // registration socket; empty if there is none
	Changed  int64  // when it was created
	Info     kubelet.PluginInfo
	InfoErr  error
	Endpoint string
	Ready    bool
	ProbeErr error

	NodeID          string // in CSINode; empty if the driver is not in it
	RegistrationErr error  // CSINode could not be read
	OwnNodeID       string // the driver's own report, read if it is not in CSINode
	OwnNodeIDErr    error
}

// needed reports whether pods on this node cannot run without it. A pod that names a driver, or looks like one, is no
// evidence of the node: otherwise anyone who may create pods could make any node fatal.
func (d csiDriver) needed() bool { return d.Listed || d.Critical || d.Here && len(d.UsedBy) > 0 }

func (d csiDriver) subject() finding.Subject { return finding.Subject{Kind: d.Kind, Name: d.Name} }

// evaluateCSIDriver returns the fault of a driver, or why it is not known.
func evaluateCSIDriver(d csiDriver, s Settings) (*finding.Finding, error) {
	f, err := d.fault()
	if err != nil || f == nil {
		return nil, err
	}
	if youngest, ok := d.starting(s.StartGrace); ok {
		return nil, fmt.Errorf("driver's pod %s is starting (%s): %s", youngest.Name, youngest.Up.Round(time.Second),
			f.Message)
	}
	return f, nil
}

// fault follows the steps of a registration and stops at the first that fails.
func (d csiDriver) fault() (*finding.Finding, error) {
	switch {
	case d.Socket == "" && len(d.Pods) == 0 && !d.Here && !d.Listed:
		return d.found("CSIDriverUnknown", "it was never on this node, and none of its pods is: check the name in the "+
			"pod or its StorageClass, and whether the driver's DaemonSet should run here"), nil
	case d.Socket == "" && len(d.Pods) == 0:
		return d.found("CSIDriverPodMissing", "it has no registration socket and none of its pods runs on this node: "+
			"check the driver's DaemonSet; if the driver was removed on purpose, this clears when no pod uses it"), nil
	case d.Socket == "":
		return d.found("CSISocketMissing", "it has no socket in kubelet's plugin registry although its pod %s is "+
			"here: read the log of the registrar container", d.Pods[0].Name), nil
	case errors.Is(d.InfoErr, syscall.ECONNREFUSED):
		return d.found("CSISocketStale", "no process listens on its registration socket %s: its registrar has died; "+
			"delete the driver's pod so that it starts again, or delete the socket if the driver was removed on purpose",
			d.Socket), nil
	case errors.Is(d.InfoErr, fs.ErrNotExist):
		return nil, fmt.Errorf("registration socket has just gone: %w", d.InfoErr)
	case d.InfoErr != nil:
		//nolint:nilerr // the error is the finding
		return d.found("CSIGetInfoFailed", "its registration socket %s does not answer GetInfo: %s: read the log of "+
			"the registrar container", d.Socket, checkkit.Sanitize(d.InfoErr.Error(), 300)), nil
	case errors.Is(d.ProbeErr, kubelet.ErrOutside), errors.Is(d.ProbeErr, syscall.EXDEV):
		return d.unregistered(fmt.Errorf("the driver cannot be reached: %w", d.ProbeErr))
	case d.ProbeErr != nil:
		//nolint:nilerr // the error is the finding
		return d.found("CSIDriverNotReady", "it does not answer Probe: %s: read the log of the driver",
			checkkit.Sanitize(d.ProbeErr.Error(), 300)), nil
	case !d.Ready:
		return d.found("CSIDriverNotReady", "it reports that it is not ready: read the log of the driver"), nil
	default:
		return d.unregistered(nil)
	}
}

// unregistered checks CSINode, the last step. Doubt is the unknown part of the steps before.
func (d csiDriver) unregistered(doubt error) (*finding.Finding, error) {
	switch {
	case d.RegistrationErr != nil:
		return nil, errors.Join(doubt, fmt.Errorf("whether kubelet registered the driver: %w", d.RegistrationErr))
	case d.NodeID != "":
		return nil, doubt
	}
	return d.found("CSIRegistrationRejected", "kubelet has not registered it, although its sockets answer: %s",
		d.rejection()), nil
}

// rejection returns why kubelet did not accept the driver, as far as it can be known from outside: kubelet tells only
// its log and the registrar, which then exits.
func (d csiDriver) rejection() string {
	if why := unsupported(d.Info.Versions); why != "" {
		return why
	}
	switch {
	case d.OwnNodeIDErr != nil:
		return "NodeGetInfo fails: " + checkkit.Sanitize(d.OwnNodeIDErr.Error(), 300)
	case d.OwnNodeID == "":
		return "NodeGetInfo answers an empty node ID"
	}
	for _, pod := range d.Pods {
		if pod.LastEnd != "" {
			return fmt.Sprintf("container %s", pod.LastEnd)
		}
	}
	return "see the log of the registrar container, and kubelet's log for RegisterPlugin"
}

// unsupported returns why kubelet supports none of the versions; it supports 1.x.
func unsupported(versions []string) string {
	for _, text := range versions {
		if v, err := version.ParseGeneric(text); err == nil && v.Major() == 1 {
			return ""
		}
	}
	return fmt.Sprintf("kubelet supports none of its versions %q", versions)
}

// starting returns the driver's pod that has just started, if any. One that restarts again and again gets no grace.
func (d csiDriver) starting(grace time.Duration) (csiPod, bool) {
	i := slices.IndexFunc(d.Pods, func(p csiPod) bool {
		// A start far in the future means a wrong clock, not a young pod.
		return p.Up < grace && p.Up > -10*time.Minute && p.Restarts < 3
	})
	if i < 0 {
		return csiPod{}, false
	}
	return d.Pods[i], true
}

func (d csiDriver) found(reason, format string, args ...any) *finding.Finding {
	what := "CSI driver " + d.Name
	if d.Kind != csiDriverKind {
		what = "plugin of kubelet"
	}
	f := finding.Finding{
		Subject: d.subject(), Severity: finding.Warning, Reason: reason,
		Message: what + ": " + fmt.Sprintf(format, args...),
		Facts:   map[string]string{"because": strings.Join(d.Because, ", ")},
	}
	if d.needed() {
		f.Severity = finding.Fatal
	}
	for key, value := range map[string]string{"socket": d.Socket, "endpoint": d.Endpoint, "nodeID": d.NodeID,
		"usedBy": finding.JoinFirst(d.UsedBy, 10)} {
		if value != "" {
			f.Facts[key] = value
		}
	}
	if len(d.Pods) > 0 {
		f.Facts["driverPod"] = d.Pods[0].Name
	}
	if len(d.UsedBy) > 0 {
		f.Message += fmt.Sprintf(" (volumes of %d pods on this node are its: %s)", len(d.UsedBy),
			finding.JoinFirst(d.UsedBy, 3))
	}
	return &f
}

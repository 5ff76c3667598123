package repair

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// reregisterCSIDriver is the name of the action that must run before restart-csi-driver.
const reregisterCSIDriver = Name("reregister-csi-driver")

// registrationSettles bounds a registration after its registrar was restarted: kubelet retries a rejected socket after
// up to 2 min 2 s (pkg/kubelet/pluginmanager, exponential back-off by path), and the check gives a newly started pod a
// minute.
const registrationSettles = 3 * time.Minute

// registrationFaults are the findings of an unregistered driver.
func registrationFaults() []Answer {
	return []Answer{{"csi-registration", []string{"CSISocketMissing", "CSISocketStale", "CSIGetInfoFailed",
		"CSIRegistrationRejected"}}}
}

// isDriver reports whether a finding is about a driver with a known name.
func isDriver(_ Settings, f finding.Finding) bool { return f.Subject.Kind == "csi-driver" }

func reregisterDriver() Action {
	return Action{
		Name:    reregisterCSIDriver,
		Summary: "restart the registrar of a CSI driver that is not registered with kubelet",
		Answers: registrationFaults(), Of: isDriver,
		Disrupts: true, Once: true, Settle: registrationSettles,
		PerDay: func(s Settings) int { return s.RestartsPerDay },
		Needs: slices.Concat([]string{
			"exactly one container is proven to be the driver's registrar: it mounts kubelet's plugin registry, its " +
				"--kubelet-registration-path is the driver's socket, and it is a node-driver-registrar by its image, " +
				"command or program, or its process listens on the registration socket",
			"the server on that path answers with the driver's name; each process that listens on the registration socket is in the container",
			"the driver itself is another container",
		}, containerNeeds()),
		Does: []string{"end the registrar's container through CRI: kubelet starts it again, and it registers the driver " +
			"anew", "once for each fault; then restart-csi-driver, if it is on, or ask for help (RepairDidNotHelp)"},
		Never: []string{"deletes a pod or any other object of the apiserver", "ends the driver's own container",
			"removes a socket", "acts on a driver known only from a socket that does not answer"},
		Examine: examineRegistrar,
	}
}

func restartDriver() Action {
	return Action{
		Name:    "restart-csi-driver",
		Summary: "restart the container of a CSI driver whose registrar's restart did not help",
		Answers: registrationFaults(), Of: isDriver,
		Disrupts: true, Once: true, After: reregisterCSIDriver, Settle: registrationSettles,
		PerDay: func(s Settings) int { return s.RestartsPerDay },
		Needs: slices.Concat([]string{
			"reregister-csi-driver was done for this fault, and has failed",
			"exactly one container's process listens on the driver's own socket",
			"no volume of the driver is published to a pod or staged on the node, and the agent can read kubelet's records of all volumes",
		}, containerNeeds()),
		Does: []string{"end the driver's container through CRI: kubelet starts it again", "once for each fault; then ask " +
			"for help (RepairDidNotHelp)"},
		Never: []string{"deletes a pod or any other object of the apiserver", "ends a driver that any volume of the node " +
			"may depend on"},
		Examine: examineDriver,
	}
}

func examineRegistrar(ctx context.Context, t Tools, f finding.Finding) (Job, error) {
	s, err := newRegistration(ctx, t, f)
	if err != nil {
		return Job{}, err
	}
	registrar, _, err := s.registrar(ctx)
	if err != nil {
		return Job{}, err
	}
	r, err := registrar.mayEnd(ctx, t)
	if err != nil {
		return Job{}, err
	}
	return r.restart(t, "registrar of CSI driver "+s.driver), nil
}

func examineDriver(ctx context.Context, t Tools, f finding.Finding) (Job, error) {
	s, err := newRegistration(ctx, t, f)
	if err != nil {
		return Job{}, err
	}
	driver, err := s.driverContainer(ctx)
	if err != nil {
		return Job{}, err
	}
	if err := noVolumesOf(t.Host, s.driver); err != nil {
		return Job{}, err
	}
	r, err := driver.mayEnd(ctx, t)
	if err != nil {
		return Job{}, err
	}
	// A pod may have arrived meanwhile.
	return r.restart(t, "CSI driver "+s.driver).after(func() error { return noVolumesOf(t.Host, s.driver) }), nil
}

// registration holds the state of a driver that did not register.
type registration struct {
	host      *host.Host
	driver    string
	facts     map[string]string
	members   []member
	listeners []socket.Listener // in kubelet's registry and among its plugins
	registry  string
}

func newRegistration(ctx context.Context, t Tools, f finding.Finding) (*registration, error) {
	h := t.Host
	if h.Paths.PluginRegistry == "" || h.Plugins.Name == nil {
		return nil, fmt.Errorf("plugins of kubelet: %w", hosterr.ErrNotConfigured)
	}
	if !isDriver(t.Settings, f) || !kubelet.IsCSIDriverName(f.Subject.Name) {
		return nil, refuse("the name of the driver is unknown")
	}
	pods, err := livePods(ctx, h)
	if err != nil {
		return nil, err
	}
	s := &registration{host: h, driver: f.Subject.Name, facts: f.Facts, members: members(pods),
		registry: path.Clean(h.Paths.PluginRegistry)}
	s.listeners, err = socket.Listeners(ctx, h, s.registry, path.Join(h.Paths.KubeletRoot, "plugins"))
	if err != nil {
		return nil, fmt.Errorf("unix sockets of all processes: %w", err)
	}
	return s, nil
}

// socket is the driver's registration socket: the finding's, or the one of the registrar's convention.
func (s *registration) socket() string {
	if name := s.facts["socket"]; name != "" {
		return path.Clean(name)
	}
	return path.Join(s.registry, s.driver+"-reg.sock")
}

// registrar returns the container proven to be the driver's registrar, and the driver's own socket.
func (s *registration) registrar(ctx context.Context) (member, string, error) {
	var found []member
	endpoint := ""
	for _, m := range s.members {
		named, err := s.registers(ctx, m)
		if err != nil {
			return member{}, "", err
		}
		if named != "" {
			found, endpoint = append(found, m), named
		}
	}
	switch {
	case len(found) == 0:
		return member{}, "", refuse("no container on this node is proven to be the registrar of %s", s.driver)
	case len(found) > 1:
		return member{}, "", refuse("%s and %s both seem to be the registrar of %s", found[0], found[1], s.driver)
	}
	return found[0], endpoint, s.ownsItsSocket(found[0], endpoint)
}

// registers returns the driver's socket that a container registers, or "" if the container is not proven to be the
// driver's registrar.
func (s *registration) registers(ctx context.Context, m member) (endpoint string, err error) {
	endpoint = path.Clean(kubelet.RegistrationPath(m.spec))
	if !path.IsAbs(endpoint) || !s.mountsRegistry(m) {
		return "", nil
	}
	listens, err := s.listensIn(m, s.socket())
	if err != nil || !listens && !isRegistrar(s.host, m) {
		return "", err
	}
	name, err := s.host.Plugins.Name(ctx, endpoint)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil && name != s.driver:
		return "", nil // another's
	case err == nil, path.Base(path.Dir(endpoint)) == s.driver, endpoint == s.facts["endpoint"]:
		return endpoint, nil
	}
	return "", nil
}

// ownsItsSocket refuses if another process listens on the driver's registration socket, if the container listens on
// another driver's socket, or if the container is the driver itself.
func (s *registration) ownsItsSocket(m member, endpoint string) error {
	for _, l := range s.listeners {
		inside, err := s.heldBy(l, m)
		if err != nil {
			return err
		}
		switch {
		case l.Path == s.socket() && !inside:
			return refuse("process %d listens on %s, and is not in %s", l.PID, l.Path, m)
		case l.Path != s.socket() && inside && path.Dir(l.Path) == s.registry:
			return refuse("%s also listens on %s", m, l.Path)
		case l.Path == endpoint && inside:
			return refuse("%s is registrar and driver in one", m)
		}
	}
	return nil
}

// driverContainer returns the container that listens on the driver's own socket.
func (s *registration) driverContainer(ctx context.Context) (member, error) {
	_, endpoint, err := s.registrar(ctx)
	if err != nil {
		return member{}, err
	}
	var found []member
	for _, m := range s.members {
		listens, err := s.listensIn(m, endpoint)
		if err != nil {
			return member{}, err
		}
		if listens {
			found = append(found, m)
		}
	}
	if len(found) != 1 {
		return member{}, refuse("%d containers listen on %s: cannot tell which one is the driver", len(found), endpoint)
	}
	return found[0], nil
}

// listensIn reports whether a process of a container listens on a socket.
func (s *registration) listensIn(m member, name string) (bool, error) {
	for _, l := range s.listeners {
		if l.Path != name {
			continue
		}
		if inside, err := s.heldBy(l, m); inside || err != nil {
			return inside, err
		}
	}
	return false, nil
}

// heldBy reports whether the listening process is in a container.
func (s *registration) heldBy(l socket.Listener, m member) (bool, error) {
	if l.PID == 0 || m.id() == "" {
		return false, nil
	}
	cgroups, err := s.host.ProcCgroups(l.PID)
	if err != nil {
		return false, fmt.Errorf("process %d, which listens on %s: %w", l.PID, l.Path, err)
	}
	for _, name := range cgroups {
		if strings.Contains(name, m.id()) {
			return true, nil
		}
	}
	return false, nil
}

// mountsRegistry reports whether a container has kubelet's plugin registry as a volume.
func (s *registration) mountsRegistry(m member) bool {
	return slices.ContainsFunc(m.spec.VolumeMounts, func(mounted corev1.VolumeMount) bool {
		return slices.ContainsFunc(m.pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == mounted.Name && v.HostPath != nil &&
				hostscan.Resolve(s.host.Files, v.HostPath.Path) == hostscan.Resolve(s.host.Files, s.registry)
		})
	})
}

// isRegistrar reports whether a container is kubernetes-csi's registrar, by its image, its command, or its program's
// name, of which the kernel keeps 15 bytes.
func isRegistrar(h *host.Host, m member) bool {
	if slices.ContainsFunc(slices.Concat([]string{m.spec.Image}, m.spec.Command), func(name string) bool {
		return strings.Contains(name, "node-driver-registrar")
	}) {
		return true
	}
	processes, err := h.ContainerProcesses(m.id())
	main, ok := host.MainProcess(processes)
	return err == nil && ok && main.Comm == "csi-node-driver-registrar"[:15]
}

// noVolumesOf refuses if a volume of the driver is published or staged on the node, or if this is unknown. Volumes of
// dead pods count as well: they are released first.
func noVolumesOf(h *host.Host, driver string) error {
	used, err := volume.UsedByPods(h)
	if err != nil {
		return fmt.Errorf("volumes of pods: %w", err)
	}
	if len(used.Unread) > 0 {
		return refuse("cannot tell which drivers the volumes of all pods belong to: %s", used.Unread[0])
	}
	if uids := used.Drivers[strings.ToLower(driver)]; len(uids) > 0 {
		return refuse("volumes of %s are published to %d pods, such as %s", driver, len(uids), uids[0])
	}
	staged, err := volume.StagedVolumes(h)
	if err != nil {
		return fmt.Errorf("staged volumes: %w", err)
	}
	for _, v := range staged {
		if v.Err != nil {
			return refuse("cannot tell which driver %s belongs to: %v", v.Path, v.Err)
		}
		if strings.EqualFold(v.Note.Driver, driver) || path.Base(path.Dir(v.Path)) == driver {
			return refuse("a volume of %s is staged in %s", driver, v.Path)
		}
	}
	return nil
}

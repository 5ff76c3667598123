package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubeletRules match lines of kubelet about itself and its connections to the runtime and the apiserver. Messages
// became structured in 1.21: `Skipping pod synchronization` with err="…". Some lines are normal while kubelet starts
// and a fault only if they continue: "PLEG … has yet to be successful", "node not found", "may not have completed yet".
func kubeletRules() []Rule {
	const neverYet = `active 2562047h47m` // a zero time: until 1.13, of a kubelet that has just started
	return []Rule{{
		ID: "kubelet-pleg-silent", Reason: "PLEGUnhealthy", Domain: Kubernetes, Severity: finding.Warning,
		// pkg/kubelet/pleg/generic.go
		Advice: "`crictl --timeout 10s ps -a` takes how long? Too many containers, a slow disk (`iostat -x 1`), " +
			"or a hung shim.",
		Summary: "kubelet has not been able to list the runtime's containers for minutes (PLEG)",
		Patterns: []string{quoted +
			`(?:[Ss]kipping pod synchronization|Node became not ready|PLEG is not healthy).*pleg was last seen active (?P<since>\S+) ago`},
		Exclude: neverYet,
		Kind:    NodeKind, Expiry: hour, ConfirmedBy: "kubelet-pleg",
	}, {
		ID: "kubelet-runtime-down", Reason: "RuntimeNotAnswering", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`systemctl status containerd`, `crictl info`; is the socket the one of kubelet's " +
			"containerRuntimeEndpoint?",
		Summary: "kubelet cannot reach the container runtime",
		Patterns: []string{
			quoted + `[Ss]kipping pod synchronization.*container runtime is down`,
			quoted + `Container runtime (?:not ready|sanity check failed)`,
			quoted +
				`(?P<call>\w+) (?:\S.{0,80} )?from (?:runtime|image) service failed"?.*(?:code = Unavailable|dial unix \S+: connect: (?:connection refused|no such file or directory)|Cannot connect to the Docker daemon)`,
			quoted +
				`GenericPLEG: Unable to retrieve pods.*(?:code = Unavailable|DeadlineExceeded|connection refused|Cannot connect)`,
			quoted +
				`(?:command failed"? err="failed to run Kubelet: )?validate service connection: .*(?:connection refused|no such file|Unimplemented|DeadlineExceeded)`,
		},
		Exclude: `^"?(?:PullImage|ExecSync|Exec) |` + neverYet, // the registry or the container is the cause
		Kind:    NodeKind, Report: "runtime-down", Expiry: hour, ConfirmedBy: "runtime-health",
	}, {
		ID: "kubelet-runtime-slow", Reason: "RuntimeOperationsFail", Domain: Kubernetes, Severity: finding.Warning,
		Advice:  "`crictl --timeout 10s ps`, `iostat -x 1`; a hung shim or network plugin.",
		Summary: "calls to the container runtime time out",
		Patterns: []string{quoted +
			`Container garbage collection failed"?.*(?:DeadlineExceeded|context deadline exceeded)`, quoted +
			`(?P<call>\w+) (?:\S.{0,400} )?from (?:runtime|image) service failed"?.*(?:DeadlineExceeded|context deadline exceeded|operation timeout)`,
			quoted + `(?:\[imageGCManager\] )?(?:Failed to|Unable to|Error) (?:update|monitor|list|listing|get|getting|stop|stopping|remove|kill|killing|create|retrieve) [\w ]{0,40}(?:image|sandbox|container|runtime|pod)s?\b.*code = DeadlineExceeded`},
		Exclude: `^"?(?:ExecSync|Exec|PullImage) `, // a late probe, a slow registry
		Kind:    NodeKind, Raise: Rate{3, 10 * time.Minute}, Expiry: hour, ConfirmedBy: "kubelet-sync",
	}, {
		ID: "kubelet-packet-filter", Reason: "PacketFilterBusy", Domain: Network, Severity: finding.Warning,
		Advice: "`iptables -w 60 -S | wc -l` and `ps -ef` for who holds the lock (/run/xtables.lock): tens of thousands of rules, or " +
			"an iptables that hangs.",
		Summary:  "kubelet cannot read or write the packet filter's rules in time: services and host ports may not work",
		Patterns: []string{quoted + `Failed to (?:ensure|set up|execute) .*(?:timed out while checking rules|holding the xtables lock|iptables(?:-restore|-save)?: exit status [1-9])`},
		Kind:     NodeKind, Raise: Rate{3, 10 * time.Minute}, Expiry: hour,
	}, {
		ID: "kubelet-network-not-ready", Reason: "NetworkNotReady", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`crictl info` (NetworkReady), `ls /etc/cni/net.d`; does the network plugin's pod run on this " +
			"node?",
		Summary: "the pod network is not ready: new pods cannot start",
		// When a node joins, kubelet logs this every 5 s until the network's own pod has written its configuration.
		Patterns: []string{quoted + `(?:Container runtime network not ready|[Uu]nable to update cni config)`, quoted +
			`Error syncing pod,? .*(?:network is not ready|NetworkPluginNotReady)`},
		Kind: NodeKind, Raise: Rate{10, 2 * time.Minute}, Expiry: hour, ConfirmedBy: "runtime-health",
	}, {
		ID: "kubelet-not-ready", Reason: "NodeNotReady", Domain: Kubernetes, Severity: finding.Warning,
		Advice:  "`kubectl describe node` has the condition's message; `journalctl -u kubelet -e`.",
		Summary: "kubelet reports the node as not ready",
		Patterns: []string{quoted +
			`(?:Node became not ready|Node not becoming ready in time after startup|Recording NodeNotReady event message|Recording event message for node".*event="NodeNotReady")`},
		Exclude: `may not have completed yet|has yet to be successful|CSINode is not yet initialized|node is shutting down|NetworkPluginNotReady|cni config uninitialized|missing node capacity`,
		Kind:    NodeKind, Expiry: hour, ConfirmedBy: "node-registration",
		Recovery: quoted +
			`(?:Recording NodeReady event message|Recording event message for node".*event="NodeReady"|Fast updating node status as it just became ready)`,
	}, {
		ID: "kubelet-pressure", Reason: "NodeUnderPressure", Domain: Kubernetes, Severity: finding.Warning,
		Advice:  "`kubectl describe node` names it; `df -h`, `df -i`, `free -m`; `crictl rmi --prune` frees disk.",
		Summary: "kubelet reports that the node is short of memory, disk or PIDs",
		Patterns: []string{quoted + `Recording (?P<event>NodeHasDiskPressure|NodeHasInsufficient\w+) event message`,
			quoted +
				`Recording event message for node".* event="(?P<event>NodeHasDiskPressure|NodeHasInsufficient\w+)"`},
		Kind: NodeKind, Expiry: hour, ConfirmedBy: "node-registration",
		Recovery: quoted +
			`(?:Recording NodeHas(?:NoDiskPressure|Sufficient\w+) event message|Recording event message for node".* event="NodeHas(?:NoDiskPressure|Sufficient\w+)")`,
	}, {
		ID: "kubelet-apiserver", Reason: "ApiserverRequestsFail", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`curl -k https://APISERVER/livez` from the node; name resolution, route, firewall, load " +
			"balancer; kubelet's certificate.",
		Summary: "kubelet cannot renew the node's lease or update its status",
		Literals: []string{
			"rror updating node status", "nable to update node status", "ailed to update lease",
			"ailed to update node lease", "ailed to ensure lease exists", "ailed to ensure node lease exists",
		},
		Patterns: []string{
			quoted +
				`(?:Error updating node status, will retry|Unable to update node status|[Ff]ailed to update (?:node )?lease\b|[Ff]ailed to ensure (?:node )?lease exists)`,
		},
		Exclude: `the object has been modified|using latest lease, fallback`,
		Kind:    NodeKind, Raise: Rate{3, 5 * time.Minute}, Expiry: hour, ConfirmedBy: "kubelet-sync",
	}, {
		ID: "kubelet-not-registered", Reason: "NodeNotRegistered", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`journalctl -u kubelet -e`: refused (certificate, bootstrap token: `kubeadm token list`), or " +
			"not reachable.",
		Summary:  "kubelet cannot register the node",
		Patterns: []string{quoted + `Unable to register node\b`},
		Kind:     NodeKind, Raise: Rate{3, 10 * time.Minute}, Expiry: hour, ConfirmedBy: "node-registration",
		Recovery: quoted + `Successfully registered node`,
	}, {
		ID: "kubelet-node-unknown", Reason: "NodeNotRegistered", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`kubectl get node NAME`: was it deleted, or is kubelet's name (--hostname-override) another " +
			"one? `systemctl restart kubelet` registers anew.",
		Summary: "the apiserver has no Node object of this name",
		// Logged ten times a second until a new node is registered.
		Patterns: []string{quoted + `Error getting (?:the current )?node\b.* not found`, `^node "[^"]+" not found$`},
		Kind:     NodeKind, Raise: Rate{300, 10 * time.Minute}, Expiry: hour, ConfirmedBy: "node-registration",
	}, {
		ID: "kubelet-certificate-expired", Reason: "KubeletCertificateExpired", Domain: Kubernetes,
		Severity: finding.Warning,
		Advice: "`openssl x509 -enddate -noout -in /var/lib/kubelet/pki/kubelet-client-current.pem`; join again, " +
			"or `kubeadm certs renew`; is the clock right?",
		Summary: "a certificate between kubelet and apiserver has expired",
		Patterns: []string{
			quoted + `(?:The currently active client certificate has expired|No valid client certificate is found)`,
			quoted + `[Pp]art of the existing bootstrap client certificate.* is expired`,
			`^.*x509: certificate has expired or is not yet valid`,
		},
		// the registry or the pod is the cause
		Exclude: `(?i)pull(?:ing)? image|pullimage|imagepull|back-off|webhook|probe`,
		Kind:    NodeKind, Expiry: hour, ConfirmedBy: "kubelet-certificates",
	}, {
		// When a node joins, its first request waits until a person or a controller approves it.
		ID: "kubelet-certificate-waits", Reason: "KubeletCertificatePending", Domain: Kubernetes,
		Severity: finding.Warning,
		Advice:   "`kubectl get csr`: `kubectl certificate approve NAME`, or mend the controller that approves.",
		Summary:  "kubelet does not get a new certificate: its signing request is not approved or not signed",
		Patterns: []string{`^.*Failed while requesting a signed certificate from the`,
			`^.*certificate request was not (?:signed|approved|issued)`, quoted +
				`http: TLS handshake error from \S+: no serving certificate available`},
		Kind: NodeKind, Raise: Rate{5, hour}, Expiry: hour, ConfirmedBy: "kubelet-certificates",
	}, {
		// On a control plane node this is normal for a minute or two, until its own apiserver runs.
		ID: "kubelet-apiserver-calls", Reason: "ApiserverRequestsFail", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`curl -k https://APISERVER/livez` from the node; Unauthorized: kubelet's certificate or the " +
			"clock.",
		Summary:  "kubelet's requests to the apiserver fail",
		Literals: []string{"ailed to list *", "ailed to watch *", "nable to write event", "erver rejected event"},
		Patterns: []string{
			`^.*[Ff]ailed to (?:list|watch) \*\S+: .*(?:dial tcp|i/o timeout|TLS handshake timeout|connection refused|connect: no route|context deadline exceeded|EOF|Unauthorized)`,
			quoted +
				`(?:Server rejected event|Unable to write event)\b.*(?:dial tcp|i/o timeout|TLS handshake timeout|connection refused|context deadline exceeded|EOF|Unauthorized)`,
		},
		Kind: NodeKind, Raise: Rate{100, 10 * time.Minute}, Expiry: hour, ConfirmedBy: "apiserver-reachability",
	}, {
		// pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go, endpoint.go until 1.24; a single line is the start of
		// a plugin update
		ID: "kubelet-device-plugin-lost", Reason: "DevicePluginLost", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`kubectl get node NAME -o yaml` (allocatable: 0 of the resource?); `kubectl logs` of the plugin's pod on this node, " +
			"and delete the pod: it registers anew.",
		Summary:  "the plugin of a GPU or another device ends again and again: pods cannot get its devices",
		Patterns: []string{quoted + `[Ll]istAndWatch ended unexpectedly for device plugin(?:".* resource=?"?| )(?P<subject>[\w./-]{1,128})`},
		Kind:     "device-plugin", Raise: Rate{3, hour}, Expiry: hour,
	}, {
		ID: "kubelet-slow", Reason: "KubeletSlow", Domain: Kubernetes, Severity: finding.Warning,
		// pkg/kubelet/kubelet.go
		Advice: "`uptime` and `iostat -x 1`: the processors or the disk of /var/lib/kubelet are too busy; `crictl --timeout 10s ps`: or " +
			"the runtime is slow.",
		Summary:  "kubelet needs seconds for what it does every two seconds: pods start and stop late",
		Patterns: []string{quoted + `Housekeeping took longer than (?:expected|\d)`},
		Kind:     NodeKind, Raise: Rate{10, 10 * time.Minute}, Expiry: hour,
	}, {
		ID: "kubelet-start-failed", Reason: "KubeletNotRunning", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "The words after \"err=\" have the cause: configuration file, swap, cgroup driver, certificate; " +
			"`journalctl -u kubelet -e`.",
		Summary: "kubelet failed to start, or exited",
		Patterns: []string{
			quoted +
				`(?:command failed" err=|[Ff]ailed to run [Kk]ubelet|Failed to start (?:ContainerManager|container manager|cAdvisor)|failed to load [Kk]ubelet config|[Ff]ailed to validate kubelet|Could not initialize checkpoint manager)`,
		},
		Kind: NodeKind, Expiry: hour, ConfirmedBy: "kubelet-health",
	}, {
		ID: "kubelet-manifest", Reason: "StaticPodInvalid", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "Kubelet runs no static pod from the file that the line names until it can read it: the words after \"err=\" have " +
			"the cause; `kubectl apply --dry-run=client -f FILE` checks it.",
		Summary:  "kubelet cannot read the manifest of a static pod",
		Patterns: []string{quoted + `Could not process manifest file`},
		Kind:     NodeKind, Raise: Rate{3, 10 * time.Minute}, Expiry: hour,
	}}
}

package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The formats are those of the Linux sources of 6.1 and 6.12; wordings of older kernels, and of Lustre, which is not in
// those sources, are from recorded lines. FUSE and glusterfs (a FUSE) log no errors: hung-mounts reads their state (a
// mount that returns ENOTCONN).

// nfsRules: net/sunrpc/{clnt,xprtsock}.c, fs/nfs/{nfs4state,nfs4proc,inode,callback}.c, fs/lockd/{clntproc,mon}.c. The
// kernel logs when a server is back.
func nfsRules() []Rule {
	return []Rule{{
		ID: "nfs-server-silent", Reason: "NFSServerNotResponding", Domain: Storage, Severity: finding.Warning,
		Summary: "an NFS server does not respond: programs that access its files hang",
		Advice: "Is the server up and reachable? `rpcinfo -T tcp SERVER nfs`, `nfsstat -c` (retransmissions) and " +
			"`nfsstat -m` (its mounts); hanging programs continue when it is back.",
		Patterns: []string{`^nfs: server (?P<subject>.+) not responding, (?:still trying|timed out)`},
		Kind:     "nfs-server", Expiry: time.Hour, ConfirmedBy: "hung-mounts",
		Recovery: `^nfs: server (?P<subject>.+) OK$`,
	}, {
		// The files of the server are accessible, so no state shows it: only locks, or new mounts, hang.
		ID: "nfs-helper-silent", Reason: "NFSHelperNotResponding", Domain: Storage, Severity: finding.Warning,
		Summary: "a helper daemon of an NFS server (locks, mounts, port mapper) does not respond: locks or new " +
			"mounts hang",
		Advice: "`rpcinfo -p SERVER` lists what answers there; with NFS 3 the ports of mountd, statd and lockd must be " +
			"open too, NFS 4 needs port 2049 only.",
		Patterns: []string{`^(?:nfsd|lockd|mountd?|statd|portmap|rpcbind|nfs_acl): server (?P<subject>.+) not responding, (?:still trying|timed out)`},
		Kind:     "nfs-server", Expiry: time.Hour,
		Recovery: `^(?:nfsd|lockd|mountd?|statd|portmap|rpcbind|nfs_acl): server (?P<subject>.+) OK$`,
	}, {
		ID: "nfs-lock-lost", Reason: "NFSLockReclaimFailed", Domain: Storage, Severity: finding.Warning,
		Summary: "after an NFS server came back, locks or open files could not be reclaimed",
		Advice: "Programs that held the locks get errors (EIO): restart the pods that use the volume. `nfsstat -m` " +
			"lists the mounts; was the server restarted without its state, or longer away than its grace period?",
		// "lost" since Linux 6.0
		Patterns: []string{
			`^(?:NFS: )?_*nfs4_reclaim_(?:open_state|locks): (?:Lock reclaim failed|unhandled error)`,
			`^NFS: (?P<subject>\S+): lost \d+ locks$`,
			`^NFS: state manager(?:: [\w -]{1,60})? failed on NFSv4 server (?P<subject2>\S+) with error \d+`,
			`^NFSv4: state recovery failed for open file (?P<file>\S{1,255}), error = -?\d+`,
			`^\w+: VFS is out of sync with lock manager`, // until 5.1
			`^lockd: failed to reclaim lock for pid \d+ \(errno -?\d+, status -?\d+\)`,
			`^NFS: migration recovery failed \(server (?P<subject3>[^\s)]+)\)`,
		},
		Kind: "nfs-server", Expiry: time.Hour,
	}, {
		ID: "nfs-mount-failed", Reason: "NFSMountFailed", Domain: Storage, Severity: finding.Warning,
		Summary: "an NFS filesystem could not be mounted, or the server refuses this client",
		Advice: "`showmount -e SERVER`: is the export open to this node, with this security flavour? Try by hand with " +
			"`mount -v -t nfs SERVER:/EXPORT /mnt`; with Kerberos: does rpc.gssd run?",
		Patterns: []string{
			`^NFS: nfs\w+ unhandled error (?P<error>-?\d+)\. Exiting with error EIO`,
			`^RPC: server (?P<subject>\S+) requires stronger authentication`,
			`^NFS: (?:bind callback service failed|callback service start failed)`,
			`^RPC: +[Cc]an't bind to reserved port \(\d+\)`,
			`^lockd_up: (?:makesock failed, error=-?\d+|create service failed)`,
			`^nfs: RPC call returned error \d+`,
			`^x?s_\w+: connect returned unhandled error -?\d+`, `^x?s_\w+: unhandled error \(-?\d+\) connecting to (?P<subject2>\S+)`,
		},
		Kind: "nfs-server", Expiry: time.Hour,
	}, {
		ID: "nfs-server-error", Reason: "NFSServerError", Domain: Storage, Severity: finding.Warning,
		Summary: "an NFS server gives answers that break the protocol: files may be mixed up",
		Advice: "Two clients with one name, or an export that changed under its mounts: give each node its own " +
			"`nfs4_unique_id`, `umount` and mount the export anew, and look at the server's log.",
		Patterns: []string{
			`^NFS: server (?P<subject>[\w.:%-]{1,253}) error: fileid changed`,
			`^NFS: Server (?P<subject2>\S+) reports our clientid is in use`,
			`^NFS: Broken NFSv4 server (?P<subject3>\S+) is returning a delegation`,
			`^NFS: v4 server (?P<subject4>\S+) +returned a bad sequence-id error`,
		},
		Kind: "nfs-server", Expiry: time.Hour,
	}}
}

// smbRules: fs/smb/client/{connect,transport,smb2pdu,smb2ops}.c. Until 5.4 the prefix is "CIFS VFS: ", since then
// "CIFS: VFS: " and mostly the server's name. The kernel does not log when a server is back.
func smbRules() []Rule {
	const vfs = `^CIFS:? (?:VFS:  ?)?(?:\\\\(?P<subject>[^\s\\]+)(?:\\\S+)? )?`
	return []Rule{{
		ID: "smb-server-silent", Reason: "SMBServerNotResponding", Domain: Storage, Severity: finding.Warning,
		Summary: "an SMB server does not respond",
		Advice: "Does port 445 of the server answer? `cat /proc/fs/cifs/DebugData` shows the sessions and what waits; " +
			"hanging programs continue when it is back, or get EHOSTDOWN.",
		Patterns: []string{`^CIFS: (?:VFS: )?(?P<subject>\S+) has not responded in \d+ seconds`,
			`^CIFS VFS: Server (?P<subject2>\S+) has not responded in \d+ seconds`,
			`^CIFS VFS: (?P<subject2>\\\\\S+) has not responded in \d+ seconds`,
			vfs + `(?:sends on sock \S+ stuck for 15 seconds|Number of request timeouts exceeded \d+|wait timed out after \d+ ms|Error -?\d+ sending data on socket to server)`,
		},
		Kind: "smb-server", Expiry: 30 * time.Minute, ConfirmedBy: "hung-mounts",
	}, {
		ID: "smb-mount-failed", Reason: "SMBMountFailed", Domain: Storage, Severity: finding.Warning,
		Summary: "an SMB share could not be mounted: the server is not reachable, or refuses",
		Advice: "The return code is an errno: -115 and -113 not reachable (port 445), -13 and -126 credentials or key, " +
			"-2 no such share, -95 the dialect (`vers=`). Try `smbclient -L //SERVER -U USER`.",
		Patterns: []string{vfs +
			`(?:cifs_mount failed w/return code = (?P<error>-?\d+)|Error connecting to socket\. Aborting operation|Send error in SessSetup = -?\d+|Dialect not supported by server|failed to connect to IPC \(rc=-?\d+\)|Error -?\d+ creating socket|BAD_NETWORK_NAME: )`},
		Kind: "smb-server", Report: "smb-mount", Expiry: 30 * time.Minute,
	}, {
		ID: "smb-session-lost", Reason: "SMBSessionLost", Domain: Storage, Severity: finding.Warning,
		Summary: "the session with an SMB share could not be renewed: access to its files fails",
		Advice: "-2: the share is gone; -13 and -126: the credentials expired; -6 and -112: the server is not " +
			"reachable. `cat /proc/fs/cifs/DebugData` shows the sessions; `umount` and mount the share anew.",
		Patterns: []string{
			vfs + `reconnect tcon (?:failed )?rc = (?P<error>-?\d+)`,
			`^CIFS:? (?:VFS: )?[Ss]erver share (?P<subject2>\S+) deleted`,
			vfs + `(?:SMB signature verification returned error = -?\d+|possible reconnect error|Share deleted\. Reconnect needed)`,
		},
		Kind: "smb-server", Expiry: 30 * time.Minute,
	}}
}

// cephRules: net/ceph/{messenger,mon_client,osd_client,auth,ceph_common}.c, fs/ceph/{mds_client,super}.c,
// drivers/block/rbd.c. Since 6.6 the filesystem and the client follow "ceph: ", and the epoch follows "libceph" in
// lines with the state of an OSD. No state confirms a hanging Ceph: statfs asks the monitors, which mostly still
// answer.
func cephRules() []Rule {
	const (
		fs  = `^ceph: (?:\[[^\]]+\]: )?`
		lib = `^libceph(?: \([0-9a-f-]+ e\d+\))?: `
	)
	return []Rule{{
		ID: "ceph-hung", Reason: "CephHung", Domain: Storage, Severity: finding.Warning,
		Summary: "a Ceph server does not respond",
		Advice: "`ceph -s` and `ceph osd tree` in the storage cluster; on this node the waiting requests are in " +
			"/sys/kernel/debug/ceph/*/osdc and mdsc. Only one node sees it: look at its network.",
		Literals: []string{"ceph: ", "libceph", "rbd: rbd"},
		Patterns: []string{
			`^ceph: +dropping (?:dirty|unsafe|file locks)`,
			fs + `(?P<subject>mds\d+) (?:hung|caps (?:stale|still stale|went stale|renewed too late)|rejected session|reconnect (?:denied|rejected|failed)|closed our session)`,
			lib + `(?P<subject2>osd\d+) (?:\S+ )?down$`,
			`^rbd: (?P<subject3>rbd\d+): (?:encountered watch error|(?:write|read|discard|writesame|zeroout)\w*(?: [0-9a-f]+)?(?: at (?:objno )?[0-9a-f]+[ \d~]*)? result -|failed to)`,
			lib + `tid \d+ on (?P<subject4>osd\d+) timeout`,
		},
		Kind: "ceph-server", Expiry: 30 * time.Minute,
		Recovery: `^(?:ceph: (?:\[[^\]]+\]: )?(?P<subject>mds\d+) (?:came back|reconnect success|caps renewed|recovery completed)|` +
			`libceph(?: \([0-9a-f-]+ e\d+\))?: (?P<subject2>osd\d+) (?:\S+ )?up$)`,
	}, {
		// A single "socket closed (con state OPEN)" is an idle connection that the server closed.
		ID: "ceph-connection", Reason: "CephConnectionLost", Domain: Storage, Severity: finding.Warning,
		Summary: "connections to a Ceph server are closed or refused",
		Advice: "Does the address and port in the line answer, and is it the right network (MTU!)? `ceph -s`, and " +
			"`ceph osd blocklist ls` for this node's address; a monitor that moved needs a new mount or map.",
		Literals: []string{" socket closed (con state ", " socket error on ", " connect error", "libceph: connect ",
			" wrong peer at address", "io error", " session reset"},
		Patterns: []string{
			`^libceph: (?P<subject>(?:osd|mon|mds)\d+) \S+ (?:socket closed \(con state (?P<state>\w+)\)|socket error on (?:read|write)|connect error|wrong peer at address|io error|session reset)`,
			`^libceph: connect (?P<subject2>\S+) error -\d+`,
		},
		Kind: "ceph-server", Raise: Rate{5, 10 * time.Minute}, Expiry: 30 * time.Minute,
	}, {
		ID: "ceph-monitor-lost", Reason: "CephMonitorLost", Domain: Storage, Severity: finding.Warning,
		Summary: "the session with the Ceph monitors is lost: what needs a new map of the cluster waits",
		Advice: "`ceph quorum_status` in the storage cluster; do the monitors' ports 3300 and 6789 answer from this " +
			"node? The kernel tries one monitor after the other.",
		Patterns: []string{`^libceph: mon\d+ (?P<address>\S+) session lost, hunting for new mon`},
		Kind:     NodeKind, Expiry: 30 * time.Minute,
		Recovery: `^libceph: mon\d+ \S+ session established`,
	}, {
		ID: "ceph-refused", Reason: "CephClientRefused", Domain: Storage, Severity: finding.Warning,
		Summary: "a Ceph cluster refuses this client: wrong key or cluster, missing features, or blocklisted",
		Advice: "`ceph auth get client.NAME` and the secret that the volume names; `ceph osd blocklist ls` for this " +
			"node; \"missing required protocol features\" needs a newer kernel or older tunables; bad fsid: an old mount " +
			"of a cluster that was made anew.",
		Literals: []string{"libceph: bad fsid, had ", "libceph: auth ", "missing required protocol features",
			"feature set mismatch, my ", " session blacklisted", " session blocklisted", " bad authorize reply",
			" connect authorization failure", "protocol version mismatch, my ", "No mds server is up or the cluster is " +
				"laggy", "no mds server is up or the cluster is laggy", "protocol error, ", "image uses unsupported"},
		Patterns: []string{
			`^libceph: bad fsid, had \S+ got \S+`,
			`^libceph: auth (?:protocol '\S+'|method '\S+') (?:.* )?(?:failed: -?\d+|error -?\d+|not allowed(?: by \w+)?)$`,
			`^libceph: (?P<subject>(?:osd|mon|mds)\d+) \S+ (?:missing required protocol features|feature set mismatch, my |bad authorize reply|connect authorization failure|protocol version mismatch|protocol error, )`,
			fs + `(?P<subject2>mds\d+) session (?:blacklisted|blocklisted)`,
			`^rbd: image (?P<subject3>\S{1,128}): image uses unsupported features: 0x`,
			`^ceph: [Nn]o mds server is up or the cluster is laggy`,
		},
		Kind: "ceph-server", Expiry: 30 * time.Minute,
	}, {
		ID: "ceph-full", Reason: "CephFull", Domain: Storage, Severity: finding.Warning,
		Summary:  "a Ceph cluster or pool is full: writes wait or fail",
		Advice:   "`ceph df` and `ceph osd df`: add OSDs, delete data, or raise the pool's quota (`ceph osd pool set-quota`).",
		Patterns: []string{`^libceph: (?:cluster is full \(osdmap FULL\)|pool (?P<pool>\d+) is full or reached quota|FULL or reached pool quota)`},
		Kind:     NodeKind, Expiry: 30 * time.Minute,
	}}
}

// clusterFilesystemRules: fs/gfs2/{util,recovery}.c, fs/dlm/lowcomms.c, fs/ocfs2/cluster/{tcp,heartbeat,quorum}.c,
// net/9p/{trans_fd,trans_virtio,client}.c, fs/fuse/virtio_fs.c, and Lustre's lustre/ptlrpc/{import,client}.c,
// lnet/klnds.
func clusterFilesystemRules() []Rule {
	const o2node = `node (?P<subject>\S+) \(num \d+\) at (?P<address>\S+)`
	return []Rule{{
		ID: "gfs2-error", Reason: "ClusterFilesystemError", Domain: Storage, Severity: finding.Warning,
		Summary: "a GFS2 filesystem found an inconsistency, or could not recover the journal of a node that is gone",
		Advice: "It withdraws, or waits, for the cluster's sake: `dlm_tool ls` and `pcs status`; when no node has it " +
			"mounted: `fsck.gfs2 /dev/VG/LV`.",
		Patterns: []string{
			`^gfs2: fsid=(?P<subject>\S+?)(?:\.\d+)?: (?:fatal: (?:filesystem consistency error|I/O error|assertion |invalid metadata block)|jid=\d+: Failed|[Ff]ile system withdrawn)`,
		},
		Kind: "filesystem", Report: "gfs2", Expiry: UntilBoot,
	}, {
		ID: "dlm-connection", Reason: "ClusterNodeLost", Domain: Storage, Severity: finding.Warning,
		Summary: "the lock manager (DLM) lost its connection to another node of the cluster: locks wait",
		Advice: "`dlm_tool status` and `corosync-quorumtool`: is the node fenced, or its network broken? Locks wait " +
			"until it is one of both.",
		Patterns: []string{
			`^dlm: (?:node \d+: )?socket error sending to node (?P<subject>\d+) at `,
			`^dlm: connect (?:to node )?(?P<subject2>\d+) try (?P<try>\d+) error -\d+`,
			`^dlm: connection \S+ got EOF from (?P<subject3>\d+)`,
		},
		Kind: "cluster-node", Expiry: 30 * time.Minute,
		Recovery: `^dlm: (?:connected to(?: node)?|got connection from) (?P<subject>\d+)`,
	}, {
		ID: "ocfs2-node-lost", Reason: "ClusterNodeLost", Domain: Storage, Severity: finding.Warning,
		Summary: "another node of an OCFS2 cluster does not respond: locks wait until it is back or evicted",
		Advice: "Does the node's cluster network answer (`o2cb list-nodes CLUSTER`, port 7777)? `mounted.ocfs2 -f` shows " +
			"which nodes use the disk.",
		Patterns: []string{
			`^o2net: (?:No longer connected to|Connection to) ` + o2node + `(?:$| (?:has been idle for|shutdown, state 7))`,
			`^o2net: Connect attempt to ` + o2node + ` failed with errno -?\d+`,
			`^o2net: No connection established with node (?P<subject>\d+) after `,
			`^o2cb: o2dlm has evicted node (?P<subject>\d+) from domain `,
			`^o2dlm: Waiting on the (?:death|recovery) of node (?P<subject>\d+) in domain `,
		},
		Kind: "cluster-node", Expiry: 30 * time.Minute,
		Recovery: `^o2net: (?:Connected to|Accepted connection from) node (?P<subject>\S+) \(num \d+\)`,
	}, {
		ID: "ocfs2-fencing", Reason: "ClusterNodeFenced", Domain: Storage, Severity: finding.Fatal,
		Summary: "this node fences itself: it lost the heartbeat disk or the quorum of its OCFS2 cluster",
		Advice: "It restarts at once. Look for errors of the heartbeat's disk (`multipath -ll`) and of the cluster " +
			"network before it: the timeout is O2CB_HEARTBEAT_THRESHOLD in /etc/sysconfig/o2cb.",
		Patterns: []string{
			`^\*\*\* ocfs2 is very sorry to be fencing this system by (?P<how>panicing|restarting) \*\*\*`,
			`^\([^)]{1,64}\):\w+:\d+ ERROR: (?:fencing this node because it is |Heartbeat write timeout to device )`,
			`^o2hb: (?:node \d+|all nodes) hb write hung`,
		},
		Kind: NodeKind, Report: "ocfs2-fencing", Expiry: time.Hour,
	}, {
		// These are recorded lines, of Lustre 2.7 to 2.15.
		ID: "lustre-connection", Reason: "LustreConnectionLost", Domain: Storage, Severity: finding.Warning,
		Summary: "the connection to a Lustre server is lost, or the server evicted this client: its files hang or fail",
		Advice: "`lfs check servers` shows which answer, `lctl ping NID` whether the network does; after an eviction " +
			"open files get EIO: restart the pods that use the volume.",
		Literals: []string{"Lustre: ", "LustreError: ", "LNet: ", "LNetError: "},
		Patterns: []string{
			`^Lustre: \S+: Connection to (?P<subject>\S+) \(at \S+\) was lost; in progress operations`,
			`^LustreError: (?:[0-9a-f]+-\d+: )?\S+: This client was evicted by (?P<subject2>[^\s;]+)`,
			`^LustreError: [0-9a-f]+-\d+: (?P<subject3>[^\s-]+-\w+)-\S*: operation (?P<call>\w+) to node \S+ failed: rc = -\d+`,
			`^Lustre: \d+:\d+:\(client\.c:\d+:ptlrpc_expire_one_request\(\)\) @@@ Request sent has (?:timed out|failed)`,
			`^LNet(?:Error)?: \d+:\d+:\(\w+\.c:\d+:\w+\(\)\) (?:Timed out (?:tx|RDMA)|.*(?:connection|Connection) .*(?:failed|timed out))`,
			`^LustreError: [0-9a-f]+-\d+: (?:\S+: )?The configuration from log '[^']+' failed|^LustreError: \d+:\d+:\(\w+\.c:\d+:\w+\(\)\) Unable to mount`,
		},
		Kind: "lustre-server", Report: "lustre", Expiry: 30 * time.Minute,
		Recovery: `^Lustre: \S+: Connection restored to (?P<subject>\S+)`,
	}, {
		// OpenAFS: afs_util.c print_internet_address. For a server with several addresses the last lost one counts.
		ID: "afs-server-silent", Reason: "AFSServerNotResponding", Domain: Storage, Severity: finding.Warning,
		Summary: "a file server of AFS does not respond: its volumes hang or fail",
		Advice: "`fs checkservers` and `vos status -server SERVER`, `rxdebug SERVER 7000`; does it answer (`ping`), and is its " +
			"fileserver running (`bos status SERVER`)?",
		Literals: []string{"\nafs: Lost contact w"},
		Patterns: []string{`^afs: Lost contact with (?:file|volume location) server (?P<subject>[0-9.]+)(?: |$)`},
		Exclude:  `other same-host interfaces`,
		Kind:     "afs-server", Expiry: 30 * time.Minute,
		Recovery: `^afs: (?:file|volume location) server (?P<subject>[0-9.]+) in cell \S+ is back up`,
	}, {
		ID: "guest-filesystem-failed", Reason: "GuestFilesystemFailed", Domain: Storage, Severity: finding.Warning,
		Summary: "a directory of the hypervisor (9p, virtiofs) could not be mounted, or its server is gone",
		Advice: "The tag must be that of the virtual machine's definition, and its server (virtiofsd, QEMU) must run on " +
			"the hypervisor: `mount -t virtiofs TAG /mnt`; for 9p over TCP, does the address answer?",
		Patterns: []string{
			`^9pnet(?:_virtio)?: no channels available for device (?P<subject>\S+)`,
			`^9pnet(?:_fd)?: p9_fd_create_\w+ \(\d+\): problem connecting socket(?: to (?P<subject2>\S+)|: (?P<subject3>\S+): -?\d+)`,
			`^9pnet: (?:bogus R\w+ count|requested packet size too big: )`,
			`^(?:virtiofs: )?virtio-fs: (?:tag <(?P<subject4>[^>]{1,64})> not found|virtio_fs_enqueue_req\(\) failed -\d+)`,
		},
		Kind: "filesystem", Expiry: time.Hour,
	}}
}

package rules

// EscalationWords are the words by which a line of a rule with Errors has the rule's EscalateSeverity at once: a device or
// resource does not answer, could not be reset, is gone, is damaged or is exhausted. With other words drivers also log
// requests that they cannot serve.
func EscalationWords() []string {
	return []string{
		// it does not answer
		"imed out", "imedout", "imeout", "ime-out", "TIMEOUT", "TIMED OUT", "ot respon", "o respon",
		"unresponsive",
		"No done completion", "stuck", "hung", "lockup", "stalled", "timing out", "HALTED", "Not Active", "wedged",
		"W not ready", "boxed state", "timer expired", "response timer",
		// it was reset, or could not be
		"eset failed", "RESET failed", "ailed to reset", "eset fail", "ailed to recover", "ecovery fail",
		"nrecover",
		"iving up", "gave up", "give up", "ailed permanently", "driver issue detecte", "in the right state",
		"Reset Aborted", "sfully reset control", "esetting device", "ailed to halt", "to quiesce", "ailed to drain",
		"ailed to transition",
		"to reinit", "ailed to flush", "is not reset", "reset is not",
		// it is gone
		" lost", "Lost contact", " dead", "died", "urprise", "naccessible", "PCI disconnect", "s disconnected",
		"ffline",
		"LOOP DOWN", "Loop down", "local link is down", "keep-alive timer", "PCI Error", "gone missing",
		"is degraded", "continue as degraded", "kicking failed",
		"is withdrawing", "has withdrawn",
		"kicking non-fresh", "is unstable", "could not open",
		// it is damaged
		"orrupt", "hecksum", "arity error", "arity Error", "crc error", "CRC error", "Terminal Error",
		"map is invalid", "run fsck", "ENOSPC reserving", "invalid crc", "atal", "FATAL", "ardware error",
		"Hardware Error", "nternal error",
		"crash", "invalid state", "ncorrect response", "unexpected unlock", "bad sequence-id",
		"need to clean", "error cqe", "is marked invalid", "nconsisten", " has bad ", "needs repair", "xfs_repair",
		"RAS records", "Saved bad pages", " err detected", "I/O error", "IO error", "transmission error",
		"CQ error", " bus error", "Bus error",
		"area error", "check-2 error", "hardware fault", "path error", "equipment f",
		// a resource is exhausted
		"verflow", "verrun", "xceeded", "xhausted", "ut of memory", "ut of resource", "buffer is full",
		"verheat",
		"reserve only 0 out", "reserve tx rings", "critical value", "allocate space for", "DMA: Out of ",
		// it accesses memory of others
		"fault addr", "IO_PAGE_FAULT", "Event logged",
	}
}

// FaultWords are the words that make a warning match the rules with Errors: with them drivers mostly report that a device or
// an operation failed. Many drivers log faults as warnings (dev_warn, netdev_warn, pr_warn, printk without a level).
// The words are from the formats of that level in the kernel's sources, and from reports.
func FaultWords() []string {
	return append(EscalationWords(),
		// an operation returned an error
		"IO failed", "alicious", "failed.", "failed!", "FAILED", "failed with ", "failed, status", "failed: status",
		"failed: ret=",
		"failed -", "failed: -", "failed (-", "failed = ",
		"rror: -", "rror -", "rror=-", "rr=-", "rr = -", "rr: -", "rr -", "rc=-", "rc = -", "rc: -", "rc -",
		"ret=-", "ret = -",
		"ret: -", "ret -", "result=-", "status=-", "errno=-", "returned -", "a TPM error", "abort failed",
		"syndrome (", " cmd failed", " (-5)", " (-110)", " (-117)", " (-121)", "ailed to send", "ailed to issue", "csum hole",
		"ailed to post", "ailed to submit", "ailed to modify QP", "ailed to modify tx", "move qp to",
		"ailed to destroy",
		"ailed to receive", "ailed to communicate", "ailed to restore", "ailed to restart", "ailed to activate",
		"ailed to stop",
		"ould not stop", "ould not start", "failure rc", "ailed to clear IT", "ailed to invalidate",
		"LINK status:0x", "Failed to wait",
		"get the device id: -", "device id fetch failed", "device id demangle f", "rror fetching flags", "rror clearing flags",
		"enable interrupts, failed", "from get global enables", "queue closed, will retry", "ailed to validate module",
		"set the global enabl", "Deletion of thin",
		// the system is set up wrongly
		"disagrees about vers", "Unknown symbol", "must provide", "needs to support",
		// NVIDIA's driver logs without a level
		"NVRM: ", "ERROR",
	)
}

// Remarks are the words of harmless warnings with a word of FaultWords: a feature that a device lacks, a refused request, or
// a failure with a fallback.
func Remarks() []string {
	return []string{
		// not supported
		" -95", "=-95", "(-95", "OPNOTSUPP", " -524", "=-524", "(-524", "ENOTSUPP", "HWinfo", "RSS disabled",
		"ptimal",
		// with a fallback, or a retry: for firmware, the newest older version
		"Direct firmware load", "alling back to MSI", "alling back to leg", "expected if",
		"is invalid, driver", "rings reservation",
		// settings, and requested actions
		"timeout disabled", "ffline test", "diagnostics", "set offline", "shall be", "parameter '",
		"may cause", "might crash",
		"timeout abort in", "oalescing", "onfiguration File", "Config File", "wake on lan", "wol config",
		"Please upgrade", "RDMA monitor", "alignment inconsist", "display audio", "deferring probe", "may corrupt",
		"fadump", "VSS: ", "oison setting", "TIMINCA",
		"regeneration", "partition scan", "set host mem",
		// optional features of the network
		"imestamp", " PTP", "LLDP", "TSAR", "mqprio", "offload", "xps", "XPS", "affinity", "MSI", "hwrm query",
		// preparations to observe or to configure
		"ailed to create", "ailed to query", "reporter", "devlink", "sysfs", "debugfs", "rash dump", "crdump",
	}
}

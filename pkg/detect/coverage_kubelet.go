package detect

func kubeletCoverage() []Coverage {
	return []Coverage{}
}

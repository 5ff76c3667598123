package detect

func filesystemCoverage() []Coverage {
	return []Coverage{}
}

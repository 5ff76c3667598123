package detect

func kernelCoverage() []Coverage {
	return []Coverage{}
}

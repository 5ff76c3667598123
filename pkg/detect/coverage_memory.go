package detect

func memoryCoverage() []Coverage {
	return []Coverage{}
}

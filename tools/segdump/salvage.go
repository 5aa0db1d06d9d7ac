package main

import "errors"

func (t *tool) salvage(args []string) (bool, error) { return false, errors.New("not yet") }

from sparkstack.errors import Problem, SparkstackError


def test_a_problem_is_one_line_with_where_found_wanted_and_remedy() -> None:
    problem = Problem("spark-2", "a\nb", "c", "do d")
    assert str(problem) == "spark-2: found a b; wanted c; do d"


def test_without_a_remedy_nothing_dangles() -> None:
    assert str(Problem("x", "1", "2")) == "x: found 1; wanted 2"


def test_an_error_is_a_line_a_problem() -> None:
    problems = [Problem("a", "1", "2"), Problem("b", "3", "4")]
    error = SparkstackError(problems)
    assert error.problems == problems
    assert str(error).splitlines() == ["a: found 1; wanted 2", "b: found 3; wanted 4"]
    assert SparkstackError(problems[0]).problems == problems[:1]


def test_a_ready_made_line_stays_one_line() -> None:
    error = SparkstackError("no\nway")
    assert (str(error), error.problems, error.lines) == ("no way", [], ["no way"])

import pytest

from report.pages import ASK, made


@pytest.fixture(params=list(ASK))
def page(request):
    """Task, facts and evidence."""
    return request.param, *made(request.param)
